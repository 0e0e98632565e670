//! What PM libraries and run times do on purpose. Each entry says why it is right.

use pmvet_findings::{Frame, Rule, Stack, rules};

use crate::account::{Account, account};
use crate::stacks::{Owner, owner};

/// Why a finding with these ends is harmless, if it is.
pub(super) fn harmless(
    rule: &Rule,
    place: &Stack,
    other: Option<&Stack>,
    flusher: Option<&Stack>,
) -> Option<&'static str> {
    // The program asks the library for these ranges, so it is responsible.
    let asked = rule.id == rules::TX_ADD_TWICE.id;
    if let Account::Library(why) = account(place)
        && !(asked && place.iter().any(|frame| owner(frame) == Owner::User))
    {
        return Some(why);
    }
    if rule.id == rules::REDUNDANT_FENCE.id && place.first().is_some_and(is_c_library) {
        return Some(
            "the C library fences its own large copies, and pmvet does not see what they store to volatile memory",
        );
    }
    if rule.id == rules::DIRTY_OVERWRITE.id {
        if let Some(Account::Library(why)) = other.map(account) {
            return Some(why);
        }
        if let Some(Account::Library(_)) = flusher.map(account) {
            return Some(
                "a transaction of the library: its undo log has the old value until the commit flushes the new one",
            );
        }
    }
    None
}

/// Rust's run time is compiled into the program, and its intrinsics are the program's own instructions.
fn is_c_library(frame: &Frame) -> bool {
    owner(frame) == Owner::Runtime && frame.module.as_deref().is_some_and(|m| m.to_string_lossy().contains("/libc"))
}
