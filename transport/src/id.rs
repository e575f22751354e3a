/// A link of one transport: a slot, and the generation that tells its users apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    /// Index in the transport's table.
    pub slot: u32,
    /// How many links have used the slot before.
    pub generation: u32,
}

/// A listening address of one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);
