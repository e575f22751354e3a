//! What one of several gets of something that all of them share.

/// Whether one that holds `own` of something may have more, if all together hold `all` of the
/// `limit` allowed.
///
/// Of three quarters, one gets at most twice what it leaves free, so the first ones cannot take
/// what those need that come later. The last quarter is for those that hold next to nothing.
#[inline]
pub fn has_part(own: usize, all: usize, limit: usize) -> bool {
    let shared = limit - limit / 4;
    own < shared.saturating_sub(all).saturating_mul(2)
        || (all < limit && own < (limit / 1024).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_has_half() {
        let alone =
            [1, 2, 100, 32768].map(|limit| (0..limit).find(|&own| !has_part(own, own, limit)));
        assert_eq!(alone, [None, None, Some(50), Some(16384)]);
    }

    #[test]
    fn who_comes_last_gets_something_until_all_is_taken() {
        let limit = 1 << 20;
        assert!(has_part(0, limit - 1, limit) && has_part(1023, limit - 1, limit));
        assert!(!has_part(1024, limit - 1, limit) && !has_part(0, limit, limit));
    }
}
