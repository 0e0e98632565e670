//! The state of a thread whose data flow is followed: its registers and the next instruction, as
//! [`What::Step`](crate::What::Step) carries them.

/// The longest instruction has 15 bytes.
pub const CODE: usize = 16;
/// How many bytes a [`ThreadState`] takes.
pub const BYTES: usize = 18 * 8 + CODE;

/// The state of a thread before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadState {
    /// `rax rcx rdx rbx rsp rbp rsi rdi r8 .. r15`.
    pub general: [u64; 16],
    /// Where the thread's segment starts.
    pub fs: u64,
    /// The address of the instruction.
    pub pc: u64,
    /// The instruction, and the bytes after it.
    pub code: [u8; CODE],
}

impl ThreadState {
    /// The form in which an event carries it.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = self.general.iter().chain([&self.fs, &self.pc]);
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[BYTES - CODE..].copy_from_slice(&self.code);
        bytes
    }

    /// Nothing if these are not the bytes of a state.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, code) = bytes.split_at_checked(BYTES - CODE)?;
        let mut words = words.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes).unwrap_or_default());
        let mut general = [0; 16];
        general.iter_mut().zip(&mut words).for_each(|(to, word)| *to = word);
        Some(Self { general, fs: words.next()?, pc: words.next()?, code: code.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives() {
        let state = ThreadState { general: std::array::from_fn(|i| i as u64 + 1), fs: 17, pc: 18, code: [19; CODE] };
        let bytes = state.to_bytes();
        assert_eq!(ThreadState::from_bytes(&bytes), Some(state));
        assert_eq!(ThreadState::from_bytes(&bytes[1..]), None);
        assert_eq!(ThreadState::from_bytes(&[]), None);
    }
}
