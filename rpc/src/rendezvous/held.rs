/// A tensor that was taken out of its step and stays where it was, so that it need not move, until
/// whoever has this says what became of it. Without that it stays for ever.
#[must_use = "a tensor that is held stays until it is released"]
#[derive(Debug, PartialEq, Eq)]
pub struct HeldTensor(u32);

impl HeldTensor {
    /// The tensor that its owner knows by this number.
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// What the owner knows it by.
    pub fn number(self) -> u32 {
        self.0
    }
}
