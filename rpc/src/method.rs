use std::fmt;

macro_rules! methods {
    ($($variant:ident = $number:literal;)*) => {
        /// The methods of star, with its numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Method {
            $(
                #[doc = concat!("Number ", $number)]
                $variant = $number,
            )*
        }

        impl Method {
            /// All methods.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The method with this number.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name in TensorFlow's spelling.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

methods! {
    GetStatus = 0;
    GetTopologyStatus = 1;
    CreateWorkerSession = 2;
    DeleteWorkerSession = 3;
    RegisterGraph = 4;
    DeregisterGraph = 5;
    RunGraph = 6;
    StarRunGraph = 7;
    CleanupGraph = 8;
    CleanupAll = 9;
    RecvTensor = 10;
    FuseRecvTensor = 11;
    Logging = 12;
    Tracing = 13;
    RecvBuf = 14;
    CompleteGroup = 15;
    CompleteInstance = 16;
    GetStepSequence = 17;
}

impl Method {
    /// The number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
