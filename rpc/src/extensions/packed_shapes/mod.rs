//! Dimensions that no form of star holds, packed into the place that a record has for them.
//!
//! Each dimension is a code of Elias (gamma): as many zeros as the binary digits that follow the
//! first one, and the digits. The code is of 1 for a dimension of 1, of 2 for 0, and of one more
//! for all others, so that a dimension of 1 takes one bit.

use smallvec::SmallVec;

/// Bytes that hold packed dimensions.
pub(crate) const PACKED_BYTES: usize = 13;

/// Packs dimensions, the first one into the lowest bits. `None` if there is no room for them.
#[cold]
pub(crate) fn pack(dims: &[u64]) -> Option<[u8; PACKED_BYTES]> {
    let (mut bits, mut used) = (0_u128, 0);
    for &dim in dims {
        let code = match dim {
            1 => 1,
            0 => 2,
            dim => dim.checked_add(1)?,
        };
        let zeros = code.ilog2();
        let code_bits = 2 * zeros + 1;
        if used + code_bits > PACKED_BITS {
            return None;
        }
        // The highest digit, a one, is written first, as the end of the zeros.
        let low = code ^ (1 << zeros);
        bits |= (u128::from(low) << 1 | 1) << (used + zeros);
        used += code_bits;
    }
    let mut packed = [0; PACKED_BYTES];
    packed.copy_from_slice(&bits.to_le_bytes()[..PACKED_BYTES]);
    Some(packed)
}

/// Unpacks dimensions. `None` if they are no codes, or more follows them.
#[cold]
pub(crate) fn unpack(packed: &[u8], rank: usize) -> Option<SmallVec<[u64; 6]>> {
    let mut bytes = [0; 16];
    bytes[..PACKED_BYTES].copy_from_slice(packed.get(..PACKED_BYTES)?);
    let mut bits = u128::from_le_bytes(bytes);
    let mut left = PACKED_BITS;
    let mut dims = SmallVec::new();
    for _ in 0..rank {
        let zeros = bits.trailing_zeros();
        let code_bits = 2 * zeros + 1;
        if zeros >= u64::BITS || code_bits > left {
            return None;
        }
        let low = (bits >> (zeros + 1)) as u64 & ((1 << zeros) - 1);
        dims.push(match low | 1 << zeros {
            1 => 1,
            2 => 0,
            code => code - 1,
        });
        bits >>= code_bits;
        left -= code_bits;
    }
    (bits == 0).then_some(dims)
}

const PACKED_BITS: u32 = PACKED_BYTES as u32 * 8;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_document_shows_the_bits() {
        assert_eq!(pack(&[]), Some([0; PACKED_BYTES]));
        // From the lowest bit on: 1; 010 for 0; 01 and 1 for 2; 001 and 00 for 3.
        let mut packed = [0; PACKED_BYTES];
        packed[..2].copy_from_slice(&0b10_0110_0101_u16.to_le_bytes());
        assert_eq!(pack(&[1, 0, 2, 3]), Some(packed));
    }

    #[test]
    fn what_has_no_room_is_not_packed() {
        assert!(pack(&[1; 104]).is_some() && pack(&[1; 105]).is_none());
        assert!(pack(&[0; 34]).is_some() && pack(&[0; 35]).is_none());
        assert!(pack(&[u64::MAX]).is_none());
        assert!(pack(&[u64::MAX - 1, 0]).is_none());
        assert!(pack(&[2; 34]).is_some());
    }

    #[test]
    fn what_is_no_code_is_refused() {
        let packed = pack(&[7, 1]).unwrap();
        assert_eq!(unpack(&packed, 1), None);
        assert_eq!(unpack(&packed, 3), None);
        assert_eq!(unpack(&packed[1..], 2), None);
        assert_eq!(unpack(&[0; PACKED_BYTES], 1), None);
        let mut high = [0; PACKED_BYTES];
        high[PACKED_BYTES - 1] = 0x80;
        assert_eq!(unpack(&high, 1), None);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            dims in vec(prop_oneof![0_u64..4, 0_u64..1 << 20, any::<u64>()], 0..30),
        ) {
            if let Some(packed) = pack(&dims) {
                let unpacked = unpack(&packed, dims.len());
                prop_assert_eq!(unpacked.as_deref(), Some(&dims[..]));
            }
        }

        #[test]
        fn any_bits_have_one_meaning(packed in any::<[u8; PACKED_BYTES]>(), rank in 0_usize..40) {
            if let Some(dims) = unpack(&packed, rank) {
                prop_assert_eq!(pack(&dims), Some(packed));
            }
        }
    }
}
