/// The shard, of `shards`, on which everything of a step meets. Equal on all shards and in all
/// processes.
///
/// # Panics
/// If there are no shards.
#[inline]
pub fn home_shard(step_id: i64, shards: usize) -> usize {
    assert!(shards > 0, "a step needs a shard");
    if shards == 1 {
        return 0;
    }
    // The finalizer of SplitMix64: each bit of the id moves each bit of the result.
    let mut hash = step_id as u64;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    ((u128::from(hash) * shards as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_spread_evenly_over_shards() {
        for shards in [1, 2, 3, 7, 64] {
            let mut counts = vec![0; shards];
            for step_id in 0..64_000 {
                counts[home_shard(step_id, shards)] += 1;
            }
            let even = 64_000 / shards;
            let fits = |&count: &usize| count > even * 8 / 10 && count < even * 12 / 10;
            assert!(counts.iter().all(fits), "{counts:?}");
        }
        assert_eq!(home_shard(i64::MIN, 1), 0);
    }
}
