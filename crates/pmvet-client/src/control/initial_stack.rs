//! The initial stack of a new program: the client edits what the kernel put there before the program sees it.

use crate::dynamorio;

/// Where the kernel put the argument count. DynamoRIO leaves the stack as it was.
pub(crate) fn initial_stack() -> Option<u64> {
    // Field 28 of /proc/self/stat; the second field is in parentheses and may hold anything.
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(25)?.parse().ok()
}

/// Where the environment starts: the first word after the arguments.
fn environment(stack: u64) -> Option<u64> {
    let arguments = dynamorio::read_word(stack)?;
    Some(stack + 8 * (arguments + 2))
}

pub(crate) fn auxiliary_vector(stack: u64) -> Option<u64> {
    let mut at = environment(stack)?;
    while dynamorio::read_word(at)? != 0 {
        at += 8;
    }
    Some(at + 8)
}

/// Removes the variables that tell DynamoRIO what to do, so that the target sees the environment it would see alone.
/// The auxiliary vector moves up to the new end, since the C library looks for it there.
pub(crate) fn hide_environment(stack: u64) -> Option<()> {
    let start = environment(stack)?;
    let aux = auxiliary_vector(stack)?;
    let mut words = Vec::new();
    for at in (start..aux - 8).step_by(8) {
        let pointer = dynamorio::read_word(at)?;
        let variable = dynamorio::read_c_string(pointer)?;
        // DynamoRIO overwrites the name of a variable that it has seen.
        if !variable.starts_with(b"DYNAMORIO_") && variable != b"__disabled__" {
            words.push(pointer);
        }
    }
    words.push(0);
    let mut at = aux;
    loop {
        let kind = dynamorio::read_word(at)?;
        words.extend([kind, dynamorio::read_word(at + 8)?]);
        if kind == 0 {
            break;
        }
        at += 16;
    }
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    dynamorio::write_memory(start, &bytes);
    Some(())
}
