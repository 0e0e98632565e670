//! The words of each rule.

use std::path::Path;

use pmvet_findings::{Finding, Frame, Stack, rules};

use super::raw::RawFinding;
use crate::stacks::{named, subject, user_frame};
use crate::transactions::{Escape, words};

/// What is known about a finding when its words are chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) raw: &'a RawFinding,
    pub(super) eadr: bool,
    pub(super) place: &'a Stack,
    pub(super) other: Option<&'a Stack>,
    /// Where the data of the same store is flushed at other times.
    pub(super) flusher: Option<&'a Stack>,
}

#[derive(Debug)]
pub(super) struct Texts {
    pub(super) title: String,
    pub(super) expected: String,
    pub(super) happened: String,
    pub(super) fix: String,
    pub(super) caveat: Option<String>,
    /// For the place, for further ones like it, and for the other end.
    pub(super) label: String,
    pub(super) other_label: String,
}

/// `` `insert` (btree.c:12) ``, or as much of it as is known.
pub(super) fn spot(stack: &Stack) -> String {
    let frame = subject(stack);
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} ({}:{line})", name(named(stack)), base(file)),
        _ => name(named(stack)),
    }
}

fn name(frame: &Frame) -> String {
    match (frame.short_function(), &frame.module) {
        (Some(function), _) => format!("`{function}`"),
        (None, Some(module)) => format!("{}+{:#x}", base(module), frame.offset),
        (None, None) => format!("code at {:#x}", frame.offset),
    }
}

fn base(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The helper that the program's own code calls to get there, such as `pmem_persist`.
fn helper(stack: &Stack) -> Option<&str> {
    let outermost = user_frame(stack)?.checked_sub(1)?;
    stack[outermost].function.as_deref().filter(|f| !f.starts_with("_mm"))
}

pub(super) fn texts(facts: Facts<'_>) -> Texts {
    let who = name(named(facts.place));
    let here = spot(facts.place);
    let id = facts.raw.rule.id;
    match id {
        _ if id == rules::UNPERSISTED_STORE.id => unpersisted(facts, &who, &here),
        _ if id == rules::TRANSIENT_DATA.id => transient(facts, &who, &here),
        _ if id == rules::TX_STORE_NOT_ADDED.id => escaped(facts, &who, &here),
        _ if id == rules::TX_ADD_TWICE.id => added_twice(facts, &who, &here),
        _ if id == rules::TX_PERSIST.id => persisted_in_transaction(facts, &who, &here),
        _ if id == rules::DIRTY_OVERWRITE.id => overwrite(facts, &who, &here),
        _ if id == rules::FLUSH_CLEAN.id && facts.eadr => needless_flush(&who, &here),
        _ if id == rules::FLUSH_CLEAN.id => clean_flush(facts, &who, &here),
        _ if id == rules::FLUSH_VOLATILE.id => volatile_flush(facts, &who, &here),
        _ if id == rules::FLUSH_NONTEMPORAL.id => nontemporal_flush(facts, &who, &here),
        _ if id == rules::FLUSH_COVERS_STORES.id => covers(facts, &who, &here),
        _ if id == rules::REDUNDANT_FENCE.id => fence(facts, &who, &here),
        _ => orders(&who, &here),
    }
}

fn unpersisted(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let flushing = facts.raw.flushing;
    let persist = facts.flusher.and_then(helper).map_or("a flush and a fence".to_owned(), |h| format!("`{h}`"));
    let meant = match facts.flusher {
        _ if flushing => {
            "A flush of its cache line was issued, but the thread never executed a fence after it.".to_owned()
        }
        Some(flusher) => format!(
            "The same store is flushed at other times, by {}, so the data seems to be meant to survive a crash.",
            spot(flusher)
        ),
        None if facts.raw.line_flushed => {
            "Its cache line is flushed at other times, so the data around it seems to be meant to survive a crash."
                .into()
        }
        None => "No flush ever touches its cache line.".into(),
    };
    let verb = if flushing { "is flushed but never fenced" } else { "is never flushed" };
    Texts {
        title: format!("What {who} stores to PM {verb}"),
        expected: "A store that recovery relies on is followed by a flush of its cache line and a fence.".into(),
        happened: format!("When the run ended, nothing had forced the store in {here} into PM. {meant}"),
        fix: if facts.raw.in_pool && !flushing {
            words::outside_fix(&format!("in {here}"), facts.place, facts.raw.has_transactions)
        } else if flushing {
            format!("Execute a fence (`sfence`) after the flush of {}, before anything that relies on it.", Finding::DATA)
        } else {
            // A flush in another function is hardly meant for this store.
            let is_here = |flusher: &&Stack| named(flusher).function == named(facts.place).function;
            let too_short = facts.flusher.filter(is_here).map_or(String::new(), |flusher| {
                format!(
                    " If {} is meant to do that, it leaves out this cache line: check the address and the length that it is given.",
                    spot(flusher)
                )
            });
            format!(
                "Make {} persistent with {persist} after the store in {here}, and before the store that makes it reachable or \
                 valid.{too_short}",
                Finding::DATA
            )
        },
        caveat: Some(
            "The order of events alone does not tell whether recovery needs these bytes. If it does not, keep them in volatile \
             memory, or mark them with PMVET_IGNORE."
                .into(),
        ),
        label: if flushing { "no fence follows the flush of this store".into() } else { "this store is never flushed".into() },
        other_label: "the data of the same store is flushed here at other times".into(),
    }
}

fn transient(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let if_needed = match facts.raw.in_pool {
        true => "change it in a transaction that has added it, or call `pmemobj_persist` after the store",
        false => "flush the bytes and fence after the store",
    };
    Texts {
        title: format!("What {who} stores to PM is not persistent, and nothing ever flushes it"),
        expected: "Data in PM is made persistent, and data that need not survive a crash is kept in volatile memory.".into(),
        happened: format!("{here} stores to cache lines of PM that no flush touches in the whole run."),
        fix: format!(
            "If recovery never reads what {who} stores here, move it to volatile memory, which is faster. If it does, {if_needed}."
        ),
        caveat: Some(
            "pmvet cannot tell data that is meant to be volatile from data whose flush was forgotten everywhere. PMVET_IGNORE \
             marks bytes that need not survive."
                .into(),
        ),
        label: "no flush ever covers this store".into(),
        other_label: String::new(),
    }
}

fn escaped(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let escape = facts.raw.escape.unwrap_or(Escape::NotAdded);
    Texts {
        title: words::title(escape, who),
        expected: words::EXPECTED.into(),
        happened: words::happened(escape, here, false, None),
        fix: words::fix(escape, here),
        caveat: Some(words::CAVEAT.into()),
        label: words::label(escape).into(),
        other_label: String::new(),
    }
}

fn added_twice(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let first = facts.other.map_or("earlier code".to_owned(), spot);
    let (title, happened) = match facts.raw.allocated {
        true => (
            format!("{who} adds memory to a transaction that has allocated it"),
            format!("{here} adds memory that {first} has allocated in the same transaction, which covers it already."),
        ),
        false => (
            format!("{who} adds the same memory to a transaction once more"),
            format!("{here} adds memory that {first} has added to the same transaction."),
        ),
    };
    Texts {
        title,
        expected: "What a transaction changes is added to it once.".into(),
        happened,
        fix: format!("Remove the call in {here}."),
        caveat: Some("It costs time only where the transaction takes the way through both places.".into()),
        label: "the transaction covers this already".into(),
        other_label: if facts.raw.allocated { "allocated here".into() } else { "added here".into() },
    }
}

fn persisted_in_transaction(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let with = helper(facts.place).map_or("a flush".to_owned(), |h| format!("`{h}`"));
    Texts {
        title: format!("{who} makes memory persistent that its transaction makes persistent anyway"),
        expected: "A commit makes persistent what was added to the transaction or allocated in it.".into(),
        happened: format!("{here} flushes, inside the transaction, what its commit flushes once more."),
        fix: format!("Remove {with} from {here}."),
        caveat: None,
        label: "the commit does this".into(),
        other_label: "the transaction covers it since here".into(),
    }
}

fn overwrite(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let first = facts.other.map_or("an earlier store".to_owned(), spot);
    let same = facts.other.map(|o| subject(o).function.clone()) == Some(subject(facts.place).function.clone());
    let whose = facts.other.map_or(String::new(), |o| format!(" what {} stored", name(subject(o))));
    Texts {
        title: if same {
            format!("{who} overwrites its own store before that is persistent")
        } else {
            format!("{who} overwrites{whose} before that is persistent")
        },
        expected: "A value stored to PM is made persistent before it is replaced, or it is not stored to PM at all.".into(),
        happened: format!(
            "{here} replaces bytes that {first} had stored to PM, with no flush in between. After a crash PM may hold either \
             value, or the one before both."
        ),
        fix: format!(
            "Compute the value in a variable and store it to PM once; or, if recovery relies on the first value, flush it and \
             fence before {who} overwrites it."
        ),
        caveat: Some(
            "This is harmless where nobody can reach the bytes until they are flushed, as in an object that is still being \
             filled in. It costs time even then."
                .into(),
        ),
        label: "overwrites a value that is not persistent yet".into(),
        other_label: "the value that is overwritten".into(),
    }
}

fn clean_flush(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let before = match facts.other {
        Some(other) => format!("It was flushed last by {}, and nothing was stored to it since.", spot(other)),
        None => "Nothing was stored to it in this run since it was flushed last.".into(),
    };
    Texts {
        title: format!("{who} flushes a cache line that holds nothing new"),
        expected: "A cache line is flushed once after the stores to it.".into(),
        happened: format!("{here} flushes a cache line that is clean. {before}"),
        fix: "Remove this flush, or flush only the bytes that were really stored since the last one.".into(),
        caveat: None,
        label: "the line is clean".into(),
        other_label: "the line was flushed here before".into(),
    }
}

fn needless_flush(who: &str, here: &str) -> Texts {
    Texts {
        title: format!("{who} flushes a cache line, but the caches are persistent"),
        expected: "With eADR no cache line has to be flushed.".into(),
        happened: format!("{here} flushes a cache line of PM."),
        fix: "Skip flushes where the platform has eADR; libpmem does so by itself (see pmem_has_auto_flush).".into(),
        caveat: Some("The flush is needed on machines without eADR.".into()),
        label: "not needed with eADR".into(),
        other_label: "the line was flushed here before".into(),
    }
}

fn volatile_flush(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let with = helper(facts.place).map_or(String::new(), |h| format!(" through `{h}`"));
    Texts {
        title: format!("{who} flushes memory that is not PM"),
        expected: "Only cache lines of PM are flushed.".into(),
        happened: format!(
            "{here} flushes{with} a cache line of volatile memory, which does not survive a crash anyhow."
        ),
        fix: "Remove this flush. If the data is meant to be persistent, it has to live in a PM file.".into(),
        caveat: Some("A file that pmvet does not take for PM counts as volatile; name it with --pm.".into()),
        label: "not PM".into(),
        other_label: String::new(),
    }
}

fn nontemporal_flush(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let first = facts.other.map_or("earlier code".to_owned(), spot);
    Texts {
        title: format!("{who} flushes data that was stored past the cache"),
        expected: "Non-temporal stores are persistent after a fence; they need no flush.".into(),
        happened: format!("{here} flushes a cache line that holds only non-temporal stores, by {first}."),
        fix: "Remove this flush and keep the fence.".into(),
        caveat: None,
        label: "nothing of this line is in the cache".into(),
        other_label: "stored here, past the cache".into(),
    }
}

fn covers(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let first = facts.other.map_or("others".to_owned(), spot);
    Texts {
        title: format!("One flush in {who} covers several stores"),
        expected: "Each store is covered by a flush however the fields are laid out.".into(),
        happened: format!(
            "The flush in {here} covers several stores, the first by {first}, since they share a cache line."
        ),
        fix: "Flush the whole range that was stored, or make sure by alignment that it stays within one line.".into(),
        caveat: Some("Correct as long as the layout does not change.".into()),
        label: "covers several stores".into(),
        other_label: "one of the stores".into(),
    }
}

fn fence(facts: Facts<'_>, who: &str, here: &str) -> Texts {
    let stored = facts.raw.stores_before;
    Texts {
        title: if stored {
            format!("The fence in {who} waits for nothing: what was stored before it is not flushed")
        } else {
            format!("The fence in {who} has nothing to wait for")
        },
        expected: "A fence follows flushes or non-temporal stores of its thread.".into(),
        happened: if stored {
            format!("{here} fences after stores to PM, but the thread has flushed nothing since its last fence.")
        } else {
            format!("{here} fences, but the thread has flushed nothing since its last fence.")
        },
        fix: if stored {
            "If the stores before this fence have to be persistent, flush them first; if not, remove the fence.".into()
        } else {
            "Remove this fence.".into()
        },
        caveat: Some(
            "pmvet does not see non-temporal stores to volatile memory. A fence that orders those has to stay.".into(),
        ),
        label: "nothing to wait for".into(),
        other_label: String::new(),
    }
}

fn orders(who: &str, here: &str) -> Texts {
    Texts {
        title: format!("The fence in {who} waits for several cache lines"),
        expected: "Lines that have to become persistent one after the other have a fence between them.".into(),
        happened: format!(
            "{here} waits for several cache lines at once. A crash before it may leave any of them behind."
        ),
        fix: "If recovery relies on an order among them, put a flush and a fence after the first.".into(),
        caveat: Some("Correct wherever the order of these lines does not matter.".into()),
        label: "waits for several lines".into(),
        other_label: String::new(),
    }
}
