//! What recoveries say about a race.

/// The verdict on one crash of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaceVerdict {
    /// Recovery fails after the act and without the store. It works with both, and if the store is lost before the act.
    Confirmed,
    /// The same, but other threads had acted on the store before the reader did. The writer has done nothing since, and recovery works just
    /// before the store: what others have done makes the difference.
    OthersActed,
    /// Recovery also fails if the reader has not acted yet, but not before the store, nor if only earlier stores are lost: the writer
    /// itself went on before the store was persistent. Or all that is missing was acknowledged by the writer itself.
    WriterAlone,
    /// Recovery fails even with nothing lost, but not if the reader has not acted, neither at the load nor now: it rolls back, or
    /// ignores, what the reader has acted on, as with an uncommitted transaction.
    TakenBack,
    /// Another bug: recovery also fails with nothing lost, or before the store, or if only later stores of other threads are lost; or it
    /// works once a lock that stays held is free; or only the writer is to blame, but another thread had already acted on the store.
    Elsewhere,
    /// Recovery works.
    Recovered,
    /// Not all images could be tried.
    Unfinished,
}

/// How a recovery went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// It ended as usual.
    Well,
    /// It failed or hung, or the oracle or a comparison of contents rejects what it left.
    Badly,
    /// There was no time for it.
    NotTried,
}

/// What is compared with a crash on which recovery fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controls {
    /// The same with nothing lost.
    pub whole: RecoveryOutcome,
    /// The same, but only later stores of other threads to the same lines are lost. Nothing: there are none.
    pub others: Option<RecoveryOutcome>,
    /// The same, but without losing the store that was read, only what its thread had not persisted before. Nothing: there is nothing
    /// to lose, or it was not tried.
    pub beside: Option<RecoveryOutcome>,
    /// The same loss in a crash at the moment of the load.
    pub lost_at_load: RecoveryOutcome,
    /// A crash at the moment of the load with nothing lost.
    pub at_load: RecoveryOutcome,
    /// Nothing lost, but without what the reader has done.
    pub unacted: RecoveryOutcome,
    /// A crash just before the store.
    pub before: RecoveryOutcome,
    /// The same crash, if what the writer has acknowledged since the load may be missing. Nothing: it has acknowledged nothing.
    pub excused: Option<RecoveryOutcome>,
    /// Another thread had acted on what is lost before the load, so a failure after the same loss there does not blame the writer alone.
    pub acted_before: bool,
    /// The writer has done nothing since the store.
    pub writer_idle: bool,
}

impl Controls {
    /// The state before anything was compared.
    pub const NOT_TRIED: Self = Self {
        whole: RecoveryOutcome::NotTried,
        others: None,
        beside: None,
        lost_at_load: RecoveryOutcome::NotTried,
        at_load: RecoveryOutcome::NotTried,
        unacted: RecoveryOutcome::NotTried,
        before: RecoveryOutcome::NotTried,
        excused: None,
        acted_before: false,
        writer_idle: false,
    };
}

/// Judges a crash.
pub fn judge(crash: RecoveryOutcome, controls: Controls) -> RaceVerdict {
    use RecoveryOutcome::{Badly, NotTried, Well};
    let Controls { whole, others, beside, lost_at_load, at_load, unacted, before, excused, acted_before, writer_idle } =
        controls;
    match (crash, whole, lost_at_load, before) {
        (Well, ..) => RaceVerdict::Recovered,
        _ if others == Some(Badly) => RaceVerdict::Elsewhere,
        _ if others == Some(NotTried) => RaceVerdict::Unfinished,
        (Badly, Well, Well, _) => match excused {
            Some(Well) => RaceVerdict::WriterAlone,
            Some(NotTried) => RaceVerdict::Unfinished,
            Some(Badly) | None => RaceVerdict::Confirmed,
        },
        (Badly, Well, Badly, Well) if acted_before && writer_idle => match beside {
            Some(Badly) => RaceVerdict::Elsewhere,
            Some(NotTried) => RaceVerdict::Unfinished,
            Some(Well) | None => RaceVerdict::OthersActed,
        },
        // An earlier meeting decides which side is to blame.
        (Badly, Well, Badly, Well) if acted_before => RaceVerdict::Elsewhere,
        (Badly, Well, Badly, Well) => match beside {
            // An earlier store is to blame, and not the one that was read.
            Some(Badly) => RaceVerdict::Elsewhere,
            Some(NotTried) => RaceVerdict::Unfinished,
            Some(Well) | None => RaceVerdict::WriterAlone,
        },
        (NotTried, ..) | (_, NotTried, ..) | (_, _, NotTried, _) | (.., NotTried) => RaceVerdict::Unfinished,
        (Badly, Badly, Well, _) if at_load == Well && unacted == Well => RaceVerdict::TakenBack,
        _ => RaceVerdict::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stores_into_the_same_line_later_may_be_to_blame() {
        use RecoveryOutcome::{Badly, NotTried, Well};
        let confirmed = Controls { whole: Well, lost_at_load: Well, ..Controls::NOT_TRIED };
        for (others, verdict) in [
            (None, RaceVerdict::Confirmed),
            (Some(Well), RaceVerdict::Confirmed),
            (Some(Badly), RaceVerdict::Elsewhere),
            (Some(NotTried), RaceVerdict::Unfinished),
        ] {
            assert_eq!(judge(Badly, Controls { others, ..confirmed }), verdict);
        }
    }

    #[test]
    fn what_was_stored_before_may_be_to_blame() {
        use RecoveryOutcome::{Badly, NotTried, Well};
        let alone = Controls { whole: Well, lost_at_load: Badly, before: Well, ..Controls::NOT_TRIED };
        for (beside, verdict) in [
            (None, RaceVerdict::WriterAlone),
            (Some(Well), RaceVerdict::WriterAlone),
            (Some(Badly), RaceVerdict::Elsewhere),
            (Some(NotTried), RaceVerdict::Unfinished),
        ] {
            assert_eq!(judge(Badly, Controls { beside, ..alone }), verdict);
        }
        // Somebody else had relied on it already, and perhaps the writer, too.
        let acted_before = Controls { acted_before: true, ..alone };
        assert_eq!(judge(Badly, acted_before), RaceVerdict::Elsewhere);
        for (beside, verdict) in [
            (None, RaceVerdict::OthersActed),
            (Some(Well), RaceVerdict::OthersActed),
            (Some(Badly), RaceVerdict::Elsewhere),
            (Some(NotTried), RaceVerdict::Unfinished),
        ] {
            assert_eq!(judge(Badly, Controls { beside, writer_idle: true, ..acted_before }), verdict);
        }
        let fails_before = Controls { before: Badly, writer_idle: true, ..acted_before };
        assert_eq!(judge(Badly, fails_before), RaceVerdict::Elsewhere);
        // The reader's act matters: it relies on what the store stands for.
        let acted = Controls { lost_at_load: Well, beside: Some(Badly), ..alone };
        assert_eq!(judge(Badly, acted), RaceVerdict::Confirmed);
    }

    #[test]
    fn what_only_the_writer_has_acknowledged_is_its_own_fault() {
        use RecoveryOutcome::{Badly, NotTried, Well};
        for (excused, verdict) in [
            (None, RaceVerdict::Confirmed),
            (Some(Badly), RaceVerdict::Confirmed),
            (Some(Well), RaceVerdict::WriterAlone),
            (Some(NotTried), RaceVerdict::Unfinished),
        ] {
            let controls = Controls { whole: Well, lost_at_load: Well, excused, ..Controls::NOT_TRIED };
            assert_eq!(judge(Badly, controls), verdict);
        }
    }

    #[test]
    fn only_the_combination_is_a_race() {
        use RecoveryOutcome::{Badly, NotTried, Well};
        let judge = |crash, [whole, lost_at_load, at_load, unacted, before]: [RecoveryOutcome; 5]| {
            let controls = Controls { whole, lost_at_load, at_load, unacted, before, ..Controls::NOT_TRIED };
            judge(crash, controls)
        };
        assert_eq!(judge(Badly, [Well, Well, NotTried, NotTried, Badly]), RaceVerdict::Confirmed);
        assert_eq!(judge(Badly, [Well, Badly, NotTried, NotTried, Well]), RaceVerdict::WriterAlone);
        assert_eq!(judge(Badly, [Well, Badly, Well, Well, Badly]), RaceVerdict::Elsewhere);
        assert_eq!(judge(Badly, [Badly, Well, Well, Well, Well]), RaceVerdict::TakenBack);
        for (at_load, unacted) in [(Badly, Well), (Well, Badly), (NotTried, Well), (Well, NotTried)] {
            assert_eq!(judge(Badly, [Badly, Well, at_load, unacted, Well]), RaceVerdict::Elsewhere);
        }
        assert_eq!(judge(Well, [Badly, Badly, Badly, Badly, Badly]), RaceVerdict::Recovered);
        for (crash, whole, lost) in [(NotTried, Well, Well), (Badly, NotTried, Well), (Badly, Well, NotTried)] {
            assert_eq!(judge(crash, [whole, lost, Well, Well, Well]), RaceVerdict::Unfinished);
        }
    }
}
