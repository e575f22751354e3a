//! The types of tensors, and what each is in memory.
//!
//! Numbers below 100 are TensorFlow's, of which originals of star know those up to
//! [`DType::STAR_MAX`]. Those from 200 on are ours: TensorFlow has no such types, and its own
//! numbers are not expected to come so far, since 100 more marks a reference.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $number:literal, $name:literal, $class:expr;)*) => {
        /// Element type of a tensor, with TensorFlow's numbers where it has one.
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
    /// As a memory image in which elements follow each other bit by bit, as in files.
    Packed {
        /// Size of one element; the last byte is filled up.
        element_bits: usize,
    },
    /// As one serialized TensorProto for the whole tensor.
    Proto,
}

use DTypeClass::{Memory, Packed, Proto};

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
    Float8E5M2 = 24, "float8_e5m2", Memory { element_bytes: 1 };
    Float8E4M3Fn = 25, "float8_e4m3fn", Memory { element_bytes: 1 };
    Float8E4M3FnUz = 26, "float8_e4m3fnuz", Memory { element_bytes: 1 };
    Float8E4M3B11FnUz = 27, "float8_e4m3b11fnuz", Memory { element_bytes: 1 };
    Float8E5M2FnUz = 28, "float8_e5m2fnuz", Memory { element_bytes: 1 };
    Int4 = 29, "int4", Memory { element_bytes: 1 };
    UInt4 = 30, "uint4", Memory { element_bytes: 1 };
    Int2 = 31, "int2", Memory { element_bytes: 1 };
    UInt2 = 32, "uint2", Memory { element_bytes: 1 };
    Float4E2M1Fn = 33, "float4_e2m1fn", Memory { element_bytes: 1 };
    Float8E3M4 = 200, "float8_e3m4", Memory { element_bytes: 1 };
    Float8E4M3 = 201, "float8_e4m3", Memory { element_bytes: 1 };
    Float8E8M0FnU = 202, "float8_e8m0fnu", Memory { element_bytes: 1 };
    Float6E2M3Fn = 203, "float6_e2m3fn", Memory { element_bytes: 1 };
    Float6E3M2Fn = 204, "float6_e3m2fn", Memory { element_bytes: 1 };
    Int1 = 205, "int1", Memory { element_bytes: 1 };
    UInt1 = 206, "uint1", Memory { element_bytes: 1 };
    Complex32 = 207, "complex32", Memory { element_bytes: 4 };
    BComplex32 = 208, "bcomplex32", Memory { element_bytes: 4 };
    Float4E2M1FnPacked = 220, "float4_e2m1fn_packed", Packed { element_bits: 4 };
    Float6E2M3FnPacked = 221, "float6_e2m3fn_packed", Packed { element_bits: 6 };
    Float6E3M2FnPacked = 222, "float6_e3m2fn_packed", Packed { element_bits: 6 };
}

impl DType {
    /// TensorFlow's number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The last of the numbers that originals of star know.
    pub const STAR_MAX: u8 = 23;

    /// Whether originals of star know the type. All others go to peers that have announced
    /// [`Features::ELEMENT_TYPES`](crate::Features::ELEMENT_TYPES).
    pub const fn is_star(self) -> bool {
        self.number() <= Self::STAR_MAX
    }

    /// Whether TensorFlow has the type, in its newest version.
    pub const fn is_tensorflow(self) -> bool {
        self.number() < 100
    }

    /// Bytes of one element, if elements travel as their memory image and each has bytes of its
    /// own.
    pub const fn element_bytes(self) -> Option<usize> {
        match self.class() {
            Memory { element_bytes } => Some(element_bytes),
            Packed { .. } | Proto => None,
        }
    }

    /// Length of the data of so many elements, if that follows from their number.
    pub const fn data_bytes(self, num_elements: u64) -> Option<u128> {
        match self.class() {
            Memory { element_bytes } => Some(num_elements as u128 * element_bytes as u128),
            Packed { element_bits } => {
                Some((num_elements as u128 * element_bits as u128).div_ceil(8))
            }
            Proto => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
