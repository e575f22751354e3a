use crate::adapter::QueueTag;

/// What a request carries as its id, to be found again in the completion.
pub(super) fn request_id(tag: QueueTag, index: u16) -> u64 {
    u64::from(tag.slot) << 32 | u64::from(tag.generation) << 16 | u64::from(index)
}

/// The parts of an id.
pub(super) fn request_of(id: u64) -> (QueueTag, u16) {
    let tag = QueueTag {
        slot: (id >> 32) as u32,
        generation: (id >> 16) as u16,
    };
    (tag, id as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_all_its_parts() {
        let tag = QueueTag {
            slot: 0xfedc_ba98,
            generation: 0x7654,
        };
        assert_eq!(request_of(request_id(tag, 0x3210)), (tag, 0x3210));
    }
}
