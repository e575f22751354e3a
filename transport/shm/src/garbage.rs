/// Something that a peer wrote and that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote {found} as {what}, at most {allowed_max} is allowed")]
pub(crate) struct Garbage {
    /// What the value stands for.
    pub(crate) what: &'static str,
    pub(crate) found: u64,
    pub(crate) allowed_max: u64,
}

impl Garbage {
    /// Refuses a value above its limit.
    pub(crate) fn check(what: &'static str, found: u64, allowed_max: u64) -> Result<u64, Self> {
        if found <= allowed_max {
            return Ok(found);
        }
        Err(Self {
            what,
            found,
            allowed_max,
        })
    }
}
