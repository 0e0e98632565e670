//! Numbers of instructions and call paths that are the same in every run.
//!
//! A coverage run counts by such numbers. They are hashes, not positions in a table.

/// Set in the numbers of instructions outside the executable.
pub(crate) const LIBRARY_BIT: u32 = 1 << 30;

/// The factors of `mix`.
pub(crate) const MIX_FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

fn mix(a: u32, b: u32) -> u32 {
    let mixed = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(MIX_FACTORS[0]);
    (mixed ^ mixed >> 29).wrapping_mul(MIX_FACTORS[1]).rotate_right(32) as u32
}

pub(crate) fn hash_text(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| mix(hash, byte.into()))
}

/// The number of the instruction at a distance from the start of a module.
pub(crate) fn site_id(module: u32, distance: u64, in_executable: bool) -> u32 {
    let number = mix(module ^ (distance >> 32) as u32, distance as u32) & (LIBRARY_BIT - 1) | 1;
    if in_executable { number } else { number | LIBRARY_BIT }
}

/// The number of a call path. Its upper half stands for the newest call of the program, together with the calls within
/// libraries that follow it; its lower half stands for the program's call before that. The stubs compute the same.
pub(crate) fn context_id(parent: u32, call: u32) -> u32 {
    let own = |seed: u32| (mix(seed, call) | 1) << 16;
    if call & LIBRARY_BIT != 0 { own(parent >> 16) | parent & 0xffff } else { own(0) | parent >> 16 }
}
