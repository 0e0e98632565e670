//! What recoveries say about a race.

/// What became of one crash of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Recovery fails after the act and without the store. It works with both, and if the store is lost before the act.
    Confirmed,
    /// Recovery fails, but also if the reader had done nothing yet, and not before the store: the writer itself has gone on
    /// before the store was persistent.
    WriterAlone,
    /// Recovery fails with nothing lost, too, or without the store: another bug, of which this says nothing.
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

/// Judges a crash: `whole` is the same with nothing lost, `control` the same loss at the moment of the load, `before` a crash
/// just before the store.
pub fn judge(crash: Went, whole: Went, control: Went, before: Went) -> Verdict {
    use Went::{Badly, NotTried, Well};
    match (crash, whole, control, before) {
        (Well, ..) => Verdict::Recovered,
        (Badly, Well, Well, _) => Verdict::Confirmed,
        (Badly, Well, Badly, Well) => Verdict::WriterAlone,
        (NotTried, ..) | (_, NotTried, ..) | (_, _, NotTried, _) | (.., NotTried) => Verdict::Unfinished,
        _ => Verdict::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_combination_is_a_race() {
        use Went::{Badly, NotTried, Well};
        assert_eq!(judge(Badly, Well, Well, Badly), Verdict::Confirmed);
        assert_eq!(judge(Badly, Well, Badly, Well), Verdict::WriterAlone);
        assert_eq!(judge(Badly, Well, Badly, Badly), Verdict::Elsewhere);
        assert_eq!(judge(Badly, Badly, Well, Well), Verdict::Elsewhere);
        assert_eq!(judge(Well, Badly, Badly, Badly), Verdict::Recovered);
        for (crash, whole, control) in [(NotTried, Well, Well), (Badly, NotTried, Well), (Badly, Well, NotTried)] {
            assert_eq!(judge(crash, whole, control, Well), Verdict::Unfinished);
        }
    }
}
