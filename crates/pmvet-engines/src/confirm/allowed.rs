//! Races that are known to do no harm, recognised by their code: PMRace's default whitelist (section 4.4). Users add their own as
//! `[[suppress]]` entries.

use pmvet_findings::Stack;

use crate::stacks::{Owner, owner};

/// Functions of libpmemobj that allocate or free in a transaction, without their prefix.
const TRANSACTIONAL: &[&str] = &[
    "alloc", "zalloc", "xalloc", "realloc", "zrealloc", "free", "xfree", "strdup", "xstrdup", "wcsdup", "xwcsdup",
    "publish", "xpublish",
];

/// Why a meeting of two accesses is ignored, if it is.
pub fn reason(store: &Stack, load: &Stack) -> Option<&'static str> {
    let within = |stack: &Stack| stack.first().is_some_and(|frame| owner(frame) == Owner::PmLibrary);
    if within(store) && within(load) {
        return Some("what PMDK's libraries store and read themselves is covered by their own logs");
    }
    let allocates = |stack: &Stack| {
        let functions = stack.iter().filter_map(|frame| frame.function.as_deref());
        let mut names = functions.filter_map(|function| function.strip_prefix("pmemobj_tx_"));
        within(stack) && names.any(|name| TRANSACTIONAL.contains(&name))
    };
    (allocates(store) || allocates(load))
        .then_some("transactional allocation of libpmemobj goes through a redo log and is undone by recovery")
}

#[cfg(test)]
mod tests {
    use pmvet_findings::Frame;

    use super::*;

    /// Module and function of each frame, innermost first.
    fn stack(frames: &[(&str, &str)]) -> Stack {
        let frame = |(module, function): &(&str, &str)| Frame {
            module: Some(module.into()),
            function: Some((*function).into()),
            ..Frame::default()
        };
        frames.iter().map(frame).collect()
    }

    #[test]
    fn allocation_in_transactions_is_allowed_and_what_users_do_with_the_memory_is_not() {
        let user = stack(&[("/bin/store", "put")]);
        let library = stack(&[("/lib/libpmemobj.so.1", "palloc_operation"), ("/bin/store", "put")]);
        let transaction = stack(&[
            ("/lib/libpmemobj.so.1", "palloc_reserve"),
            ("/lib/libpmemobj.so.1", "pmemobj_tx_zalloc"),
            ("/bin/store", "put"),
        ]);
        // A constructor of the user, called by the library.
        let constructor = stack(&[("/bin/store", "fill"), ("/lib/libpmemobj.so.1", "pmemobj_tx_zalloc")]);
        assert!(reason(&transaction, &user).is_some() && reason(&user, &transaction).is_some());
        assert!(reason(&library, &library).is_some());
        assert_eq!(reason(&library, &user), None);
        assert_eq!(reason(&constructor, &user), None);
        assert_eq!(reason(&user, &user), None);
        assert_eq!(reason(&Stack::new(), &Stack::new()), None);
    }
}
