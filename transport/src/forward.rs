//! Methods that transports and handlers pass on to what they wrap, written once.

/// Passes methods of [`Transport`](crate::Transport) and [`Park`](crate::Park) on to the field of
/// this name.
#[macro_export]
macro_rules! forward_transport {
    ($inner:ident: $($method:ident)*) => {
        $($crate::forward_transport!(@$method $inner);)*
    };
    (@name $inner:ident) => {
        fn name(&self) -> &'static str {
            self.$inner.name()
        }
    };
    (@listen $inner:ident) => {
        fn listen(
            &mut self,
            address: ::std::net::SocketAddr,
        ) -> Result<($crate::ListenerId, ::std::net::SocketAddr), $crate::TransportError> {
            self.$inner.listen(address)
        }
    };
    (@unlisten $inner:ident) => {
        fn unlisten(&mut self, listener: $crate::ListenerId) {
            self.$inner.unlisten(listener);
        }
    };
    (@adopt $inner:ident) => {
        fn adopt(
            &mut self,
            accepted: Self::Accepted,
            next: $crate::Next,
        ) -> Result<$crate::LinkId, $crate::TransportError> {
            self.$inner.adopt(accepted, next)
        }
    };
    (@connect $inner:ident) => {
        fn connect(
            &mut self,
            peer: ::std::net::SocketAddr,
        ) -> Result<$crate::LinkId, $crate::TransportError> {
            self.$inner.connect(peer)
        }
    };
    (@send $inner:ident) => {
        fn send(
            &mut self,
            link: $crate::LinkId,
            frame: Box<$crate::Frame>,
        ) -> Result<(), $crate::Refused<Box<$crate::Frame>>> {
            self.$inner.send(link, frame)
        }
    };
    (@resume $inner:ident) => {
        fn resume(
            &mut self,
            link: $crate::LinkId,
            next: $crate::Next,
        ) -> Result<(), $crate::Refused<$crate::Next>> {
            self.$inner.resume(link, next)
        }
    };
    (@close $inner:ident) => {
        fn close(&mut self, link: $crate::LinkId, flush: bool) {
            self.$inner.close(link, flush);
        }
    };
    (@submit $inner:ident) => {
        fn submit(&mut self) {
            self.$inner.submit();
        }
    };
    (@frames_in_flight $inner:ident) => {
        fn frames_in_flight(&self) -> usize {
            self.$inner.frames_in_flight()
        }
    };
    (@offer $inner:ident) => {
        fn offer(&mut self, link: $crate::LinkId) -> Option<Vec<u8>> {
            self.$inner.offer(link)
        }
    };
    (@upgrade $inner:ident) => {
        fn upgrade(&mut self, link: $crate::LinkId, offer: &[u8]) {
            self.$inner.upgrade(link, offer);
        }
    };
    (@park $inner:ident) => {
        fn park(
            &mut self,
            timeout: Option<::std::time::Duration>,
        ) -> Result<(), $crate::TransportError> {
            self.$inner.park(timeout)
        }
    };
    (@park_fd $inner:ident) => {
        fn park_fd(&mut self) -> Option<::std::os::fd::BorrowedFd<'_>> {
            self.$inner.park_fd()
        }
    };
    (@unpark $inner:ident) => {
        fn unpark(&mut self) {
            self.$inner.unpark();
        }
    };
    (@waker $inner:ident) => {
        fn waker(&self) -> ::std::task::Waker {
            self.$inner.waker()
        }
    };
    (@watch $inner:ident) => {
        fn watch(
            &mut self,
            companion: ::std::os::fd::BorrowedFd<'_>,
        ) -> Result<(), $crate::TransportError> {
            self.$inner.watch(companion)
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

/// Passes events of a [`LinkHandler`](crate::LinkHandler) on to the field of this name; the type is
/// that of accepted connections.
#[macro_export]
macro_rules! forward_events {
    ($handler:ident<$accepted:ty>: $($event:ident)*) => {
        $($crate::forward_events!(@$event $handler $accepted);)*
    };
    (@accepted $handler:ident $accepted:ty) => {
        fn accepted(
            &mut self,
            listener: $crate::ListenerId,
            peer: ::std::net::SocketAddr,
            accepted: $accepted,
        ) {
            self.$handler.accepted(listener, peer, accepted);
        }
    };
    (@connected $handler:ident $accepted:ty) => {
        fn connected(&mut self, link: $crate::LinkId) -> $crate::Next {
            self.$handler.connected(link)
        }
    };
    (@received $handler:ident $accepted:ty) => {
        fn received(&mut self, link: $crate::LinkId, bytes: &[u8]) -> $crate::Progress {
            self.$handler.received(link, bytes)
        }
    };
    (@landed $handler:ident $accepted:ty) => {
        fn landed(
            &mut self,
            link: $crate::LinkId,
            landing: $crate::Landing,
            outcome: $crate::Outcome,
        ) -> $crate::Next {
            self.$handler.landed(link, landing, outcome)
        }
    };
    (@migration $handler:ident $accepted:ty) => {
        fn migration(&mut self, link: $crate::LinkId, news: $crate::Migration<'_>) {
            self.$handler.migration(link, news);
        }
    };
}
