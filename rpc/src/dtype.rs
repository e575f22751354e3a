//! The types of tensors, and what each is in memory.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $number:literal, $name:literal, $class:expr;)*) => {
        /// Element type of a tensor, with TensorFlow's numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DType {
            $(
                #[doc = concat!("`", $name, "`, number ", $number)]
                $variant = $number,
            )*
        }

        impl DType {
            /// All types that can be sent.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The type with this number; reference types and unknown numbers have none.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// TensorFlow's name in lower case, as in `float32`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// How elements travel.
            pub const fn class(self) -> DTypeClass {
                match self {
                    $(Self::$variant => $class,)*
                }
            }
        }
    };
}

/// How the elements of a type travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeClass {
    /// As their memory image, row-major.
    Memory {
        /// Size of one element.
        element_bytes: usize,
    },
    /// As one serialized TensorProto for the whole tensor.
    Proto,
}

use DTypeClass::{Memory, Proto};

dtypes! {
    Float32 = 1, "float32", Memory { element_bytes: 4 };
    Float64 = 2, "float64", Memory { element_bytes: 8 };
    Int32 = 3, "int32", Memory { element_bytes: 4 };
    UInt8 = 4, "uint8", Memory { element_bytes: 1 };
    Int16 = 5, "int16", Memory { element_bytes: 2 };
    Int8 = 6, "int8", Memory { element_bytes: 1 };
    String = 7, "string", Proto;
    Complex64 = 8, "complex64", Memory { element_bytes: 8 };
    Int64 = 9, "int64", Memory { element_bytes: 8 };
    Bool = 10, "bool", Memory { element_bytes: 1 };
    QInt8 = 11, "qint8", Memory { element_bytes: 1 };
    QUInt8 = 12, "quint8", Memory { element_bytes: 1 };
    QInt32 = 13, "qint32", Memory { element_bytes: 4 };
    BFloat16 = 14, "bfloat16", Memory { element_bytes: 2 };
    QInt16 = 15, "qint16", Memory { element_bytes: 2 };
    QUInt16 = 16, "quint16", Memory { element_bytes: 2 };
    UInt16 = 17, "uint16", Memory { element_bytes: 2 };
    Complex128 = 18, "complex128", Memory { element_bytes: 16 };
    Float16 = 19, "float16", Memory { element_bytes: 2 };
    Resource = 20, "resource", Proto;
    Variant = 21, "variant", Proto;
    UInt32 = 22, "uint32", Memory { element_bytes: 4 };
    UInt64 = 23, "uint64", Memory { element_bytes: 8 };
}

impl DType {
    /// TensorFlow's number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Bytes of one element, if elements travel as their memory image.
    pub const fn element_bytes(self) -> Option<usize> {
        match self.class() {
            Memory { element_bytes } => Some(element_bytes),
            Proto => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
