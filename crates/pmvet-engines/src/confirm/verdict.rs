//! What recoveries say about a race.

/// What became of one crash of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Recovery fails after the act and without the store. It works with both, and if the store is lost before the act.
    Confirmed,
    /// Recovery fails, but also if the reader had done nothing yet, and not before the store: the writer itself has gone on
    /// before the store was persistent.
    WriterAlone,
    /// Recovery fails even with nothing lost, but not if the reader had done nothing yet, neither at the load nor now: it takes back,
    /// or does not count, what the reader has acted on, as with a transaction that is not committed.
    TakenBack,
    /// Recovery fails with nothing lost, too, or without the store, or if only later stores of others are lost: another bug, of
    /// which this says nothing.
    Elsewhere,
    /// Recovery works.
    Recovered,
    /// Not all images could be tried.
    Unfinished,
}

/// How a recovery went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Went {
    Well,
    Badly,
    NotTried,
}

/// What is compared with a crash on which recovery fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The same with nothing lost.
    pub whole: Went,
    /// The same, but only what other threads have stored into the same lines later is lost. Nothing: nobody has.
    pub others: Option<Went>,
    /// The same loss at the moment of the load, and no loss then.
    pub lost_at_load: Went,
    pub at_load: Went,
    /// No loss, but the reader has done nothing.
    pub unacted: Went,
    /// A crash just before the store.
    pub before: Went,
}

impl Controls {
    pub const NOT_TRIED: Self = Self {
        whole: Went::NotTried,
        others: None,
        lost_at_load: Went::NotTried,
        at_load: Went::NotTried,
        unacted: Went::NotTried,
        before: Went::NotTried,
    };
}

/// Judges a crash.
pub fn judge(crash: Went, controls: Controls) -> Verdict {
    use Went::{Badly, NotTried, Well};
    let Controls { whole, others, lost_at_load, at_load, unacted, before } = controls;
    match (crash, whole, lost_at_load, before) {
        (Well, ..) => Verdict::Recovered,
        _ if others == Some(Badly) => Verdict::Elsewhere,
        _ if others == Some(NotTried) => Verdict::Unfinished,
        (Badly, Well, Well, _) => Verdict::Confirmed,
        (Badly, Well, Badly, Well) => Verdict::WriterAlone,
        (NotTried, ..) | (_, NotTried, ..) | (_, _, NotTried, _) | (.., NotTried) => Verdict::Unfinished,
        (Badly, Badly, Well, _) if at_load == Well && unacted == Well => Verdict::TakenBack,
        _ => Verdict::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stores_into_the_same_line_later_may_be_to_blame() {
        use Went::{Badly, NotTried, Well};
        let confirmed =
            Controls { whole: Well, others: None, lost_at_load: Well, at_load: Well, unacted: Well, before: Well };
        for (others, verdict) in [
            (None, Verdict::Confirmed),
            (Some(Well), Verdict::Confirmed),
            (Some(Badly), Verdict::Elsewhere),
            (Some(NotTried), Verdict::Unfinished),
        ] {
            assert_eq!(judge(Badly, Controls { others, ..confirmed }), verdict);
        }
    }

    #[test]
    fn only_the_combination_is_a_race() {
        use Went::{Badly, NotTried, Well};
        let judge = |crash, [whole, lost_at_load, at_load, unacted, before]: [Went; 5]| {
            judge(crash, Controls { whole, others: None, lost_at_load, at_load, unacted, before })
        };
        assert_eq!(judge(Badly, [Well, Well, NotTried, NotTried, Badly]), Verdict::Confirmed);
        assert_eq!(judge(Badly, [Well, Badly, NotTried, NotTried, Well]), Verdict::WriterAlone);
        assert_eq!(judge(Badly, [Well, Badly, Well, Well, Badly]), Verdict::Elsewhere);
        assert_eq!(judge(Badly, [Badly, Well, Well, Well, Well]), Verdict::TakenBack);
        for (at_load, unacted) in [(Badly, Well), (Well, Badly), (NotTried, Well), (Well, NotTried)] {
            assert_eq!(judge(Badly, [Badly, Well, at_load, unacted, Well]), Verdict::Elsewhere);
        }
        assert_eq!(judge(Well, [Badly, Badly, Badly, Badly, Badly]), Verdict::Recovered);
        for (crash, whole, lost) in [(NotTried, Well, Well), (Badly, NotTried, Well), (Badly, Well, NotTried)] {
            assert_eq!(judge(crash, [whole, lost, Well, Well, Well]), Verdict::Unfinished);
        }
    }
}
