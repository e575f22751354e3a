//! The tokens by which answers are told apart.

pub(super) fn token(tag: u16, number: u64, ticket: u32) -> u64 {
    u64::from(tag) << 48 | (number & NUMBER_MAX) << 32 | u64::from(ticket)
}

pub(super) fn parts_of(token: u64) -> (u16, u64, u32) {
    ((token >> 48) as u16, token >> 32 & NUMBER_MAX, token as u32)
}

/// Whose farewell was asked for by a token, if it is one of those.
pub(super) fn partner_of_farewell(token: u64) -> Option<u32> {
    let is_farewell = token != TIMER && token & FAREWELL == FAREWELL;
    is_farewell.then_some(token as u32 & !HELLO)
}

/// Which rank was asked to tell when it is lost, if a token is of such a request.
pub(super) fn rank_of_absence(token: u64) -> Option<u32> {
    let is_absence = token != TIMER && token & FAREWELL == ABSENCE;
    is_absence.then_some(token as u32)
}

/// Of which rank a token asks what only fails when that rank is lost, as long as no operation of it
/// needs more: its next description or bell, or that it is lost.
pub(super) fn asked_ahead(token: u64) -> Option<u32> {
    let is_hello = token != TIMER && token & FAREWELL == u64::from(HELLO);
    let hello = is_hello.then_some(token as u32 & !HELLO);
    hello.or_else(|| rank_of_absence(token))
}

/// Marks the ticket of a description; the rest of it is the rank.
pub(super) const HELLO: u32 = 1 << 31;

/// The greatest number of an operation in a token; then they begin again.
pub(super) const NUMBER_MAX: u64 = 0x7fff;

/// The token of the timer. No operation has it: their numbers have 15 bits.
pub(super) const TIMER: u64 = u64::MAX;

/// Marks the token of a farewell; the rest of it is the rank. Numbers of operations end below it,
/// and no memory of an operation is looked for.
pub(super) const FAREWELL: u64 = 1 << 47 | HELLO as u64;

/// Marks the token of a request that fails when a rank is lost; the rest of it is the rank.
pub(super) const ABSENCE: u64 = 1 << 47;
