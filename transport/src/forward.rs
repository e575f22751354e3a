//! Methods that transports and handlers pass on to what they wrap, written once.

/// Passes methods of [`Transport`](crate::Transport) and [`Park`](crate::Park) on to a field.
#[macro_export]
macro_rules! forward_transport {
    ($inner:ident: $($method:ident)*) => {
        $($crate::forward_transport!(@$method $inner);)*
    };
    (@name $inner:ident) => {
        $crate::forward_method!($inner name(&self) -> &'static str);
    };
    (@listen $inner:ident) => {
        $crate::forward_method!($inner listen(&mut self, address: ::std::net::SocketAddr)
            -> Result<($crate::ListenerId, ::std::net::SocketAddr), $crate::TransportError>);
    };
    (@unlisten $inner:ident) => {
        $crate::forward_method!($inner unlisten(&mut self, listener: $crate::ListenerId));
    };
    (@adopt $inner:ident) => {
        $crate::forward_method!($inner adopt(&mut self,
            accepted: Self::Accepted, next: $crate::Next)
            -> Result<$crate::LinkId, $crate::TransportError>);
    };
    (@connect $inner:ident) => {
        $crate::forward_method!($inner connect(&mut self, peer: ::std::net::SocketAddr)
            -> Result<$crate::LinkId, $crate::TransportError>);
    };
    (@send $inner:ident) => {
        $crate::forward_method!($inner send(&mut self,
            link: $crate::LinkId, frame: Box<$crate::Frame>)
            -> Result<(), $crate::Refused<Box<$crate::Frame>>>);
    };
    (@resume $inner:ident) => {
        $crate::forward_method!($inner resume(&mut self, link: $crate::LinkId, next: $crate::Next)
            -> Result<(), $crate::Refused<$crate::Next>>);
    };
    (@end_stream $inner:ident) => {
        fn end_stream(&mut self, link: $crate::LinkId) {
            self.$inner.end_stream(link);
        }
    };
    (@close $inner:ident) => {
        $crate::forward_method!($inner close(&mut self, link: $crate::LinkId, flush: bool));
    };
    (@submit $inner:ident) => {
        $crate::forward_method!($inner submit(&mut self));
    };
    (@reading $inner:ident) => {
        fn reading(&mut self, link: $crate::LinkId) -> Option<$crate::Reading> {
            self.$inner.reading(link)
        }
    };
    (@ends $inner:ident) => {
        fn ends(&mut self, link: $crate::LinkId) -> Option<$crate::Ends> {
            self.$inner.ends(link)
        }
    };
    (@frames_in_flight $inner:ident) => {
        $crate::forward_method!($inner frames_in_flight(&self) -> usize);
    };
    (@offer $inner:ident) => {
        $crate::forward_method!($inner offer(&mut self, link: $crate::LinkId) -> Option<Vec<u8>>);
    };
    (@upgrade $inner:ident) => {
        $crate::forward_method!($inner upgrade(&mut self, link: $crate::LinkId, offer: &[u8]));
    };
    (@park $inner:ident) => {
        $crate::forward_method!($inner park(&mut self, timeout: Option<::std::time::Duration>)
            -> Result<(), $crate::TransportError>);
    };
    (@park_fd $inner:ident) => {
        $crate::forward_method!($inner park_fd(&mut self)
            -> Option<::std::os::fd::BorrowedFd<'_>>);
    };
    (@patience $inner:ident) => {
        $crate::forward_method!($inner patience(&mut self) -> Option<::std::time::Duration>);
    };
    (@unpark $inner:ident) => {
        $crate::forward_method!($inner unpark(&mut self));
    };
    (@waker $inner:ident) => {
        $crate::forward_method!($inner waker(&self) -> ::std::task::Waker);
    };
    (@watch $inner:ident) => {
        $crate::forward_method!($inner watch(&mut self, companion: ::std::os::fd::BorrowedFd<'_>)
            -> Result<(), $crate::TransportError>);
    };
}

/// Passes events of a [`LinkHandler`](crate::LinkHandler) on to a field; the type is of accepted
/// connections.
#[macro_export]
macro_rules! forward_events {
    ($handler:ident<$accepted:ty>: $($event:ident)*) => {
        $($crate::forward_events!(@$event $handler $accepted);)*
    };
    (@accepted $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler accepted(&mut self, listener: $crate::ListenerId,
            peer: ::std::net::SocketAddr, accepted: $accepted));
    };
    (@connected $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler connected(&mut self, link: $crate::LinkId)
            -> $crate::Next);
    };
    (@received $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler received(&mut self, link: $crate::LinkId, bytes: &[u8])
            -> $crate::Progress);
    };
    (@landed $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler landed(&mut self, link: $crate::LinkId,
            landing: $crate::Landing, outcome: $crate::Outcome) -> $crate::Next);
    };
    (@proven $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler proven(&mut self, link: $crate::LinkId,
            name: Option<&$crate::PeerName>));
    };
    (@migration $handler:ident $accepted:ty) => {
        $crate::forward_method!($handler migration(&mut self, link: $crate::LinkId,
            news: $crate::Migration<'_>));
    };
}

/// One method that calls that of a field.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_method {
    ($inner:ident $method:ident(&mut $self:ident $(, $name:ident: $type:ty)*)
        $(-> $result:ty)?) => {
        fn $method(&mut $self $(, $name: $type)*) $(-> $result)? {
            $self.$inner.$method($($name),*)
        }
    };
    ($inner:ident $method:ident(&$self:ident) $(-> $result:ty)?) => {
        fn $method(&$self) $(-> $result)? {
            $self.$inner.$method()
        }
    };
}

/// Says that the links of a [`Transport`](crate::Transport) stay where they begin.
#[macro_export]
macro_rules! links_stay {
    () => {
        fn offer(&mut self, _: $crate::LinkId) -> Option<Vec<u8>> {
            None
        }

        fn upgrade(&mut self, _: $crate::LinkId, _: &[u8]) {
            // What a peer offers is for transports that have another medium.
        }
    };
}
