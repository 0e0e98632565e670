//! What recoveries say about a race.

use std::collections::HashMap;

use pmvet_events::SiteId;

use super::meetings::{Crash, Meeting};

/// Two instructions that met.
pub type Pair = (SiteId, SiteId);

/// What became of a race.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Recovery fails on an image with the act and without the store, and on no image with both or neither.
    Confirmed { meeting: usize, crash: usize },
    /// Recovery fails, but also if the reader had done nothing: the fault is the writer's alone.
    WriterAlone { meeting: usize },
    /// Recovery works on every image that was tried.
    Recovered { images: usize },
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

/// Judges each pair of a run. `went` says how the recovery from a crash went, `whole` the same with nothing lost, `neither` from
/// a crash just before the store.
pub fn judge(
    meetings: &[Meeting],
    went: impl Fn(&Crash) -> Went,
    whole: impl Fn(&Crash) -> Went,
    neither: impl Fn(&Meeting) -> Went,
) -> HashMap<Pair, Verdict> {
    let mut verdicts: HashMap<Pair, Verdict> = HashMap::new();
    for (at, meeting) in meetings.iter().enumerate() {
        let pair = (meeting.store.site, meeting.load.site);
        let verdict = judge_one(meeting, at, &went, &whole, &neither);
        let images = |verdict: &Verdict| match verdict {
            Verdict::Recovered { images } => *images,
            _ => 0,
        };
        match verdicts.get_mut(&pair) {
            None => {
                verdicts.insert(pair, verdict);
            }
            Some(known) if rank(&verdict) > rank(known) => *known = verdict,
            Some(Verdict::Recovered { images: known }) => *known += images(&verdict),
            Some(_) => {}
        }
    }
    verdicts
}

fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Recovered { .. } => 0,
        Verdict::Unfinished => 1,
        Verdict::WriterAlone { .. } => 2,
        Verdict::Confirmed { .. } => 3,
    }
}

fn judge_one(
    meeting: &Meeting,
    at: usize,
    went: &impl Fn(&Crash) -> Went,
    whole: &impl Fn(&Crash) -> Went,
    neither: &impl Fn(&Meeting) -> Went,
) -> Verdict {
    let mut verdict = Verdict::Recovered { images: meeting.crashes.len() };
    for (i, crash) in meeting.crashes.iter().enumerate() {
        match went(crash) {
            Went::Well => {}
            Went::NotTried => verdict = Verdict::Unfinished,
            Went::Badly => match (neither(meeting), whole(crash)) {
                (Went::Well, Went::Well) => return Verdict::Confirmed { meeting: at, crash: i },
                (Went::Badly, Went::Well) => return Verdict::WriterAlone { meeting: at },
                // With nothing lost it fails, too: another bug, of which this says nothing.
                (_, Went::Badly) => {}
                _ => verdict = Verdict::Unfinished,
            },
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use pmvet_events::{ContextId, FileId, ThreadId};
    use pmvet_model::LineId;
    use pmvet_target::crash::VersionId;

    use super::super::meetings::End;
    use super::*;

    /// A meeting with one crash for each number.
    fn meeting(load: u32, crashes: &[u64]) -> Meeting {
        let end = |site| End {
            thread: ThreadId(1),
            site: SiteId(site),
            context: ContextId(1),
            seq: 1,
            line: LineId::of(FileId(1), 0),
            offset: 0,
            len: 8,
        };
        let crash = |&seq: &u64| Crash { seq, version: VersionId(0), patches: Vec::new(), act: end(9), fenced: true };
        Meeting { store: end(1), load: end(load), crashes: crashes.iter().map(crash).collect(), brief: false }
    }

    fn verdict(meetings: &[Meeting], bad: &[u64], whole: Went, neither: Went) -> Verdict {
        let went = |crash: &Crash| if bad.contains(&crash.seq) { Went::Badly } else { Went::Well };
        judge(meetings, went, |_| whole, |_| neither).remove(&(SiteId(1), SiteId(2))).unwrap()
    }

    #[test]
    fn only_the_combination_is_a_race() {
        let meetings = [meeting(2, &[1, 2, 3])];
        let judged = |whole, neither| verdict(&meetings, &[2], whole, neither);
        assert_eq!(judged(Went::Well, Went::Well), Verdict::Confirmed { meeting: 0, crash: 1 });
        assert_eq!(judged(Went::Well, Went::Badly), Verdict::WriterAlone { meeting: 0 });
        assert_eq!(judged(Went::Badly, Went::Well), Verdict::Recovered { images: 3 });
        assert_eq!(judged(Went::Well, Went::NotTried), Verdict::Unfinished);
    }

    #[test]
    fn the_gravest_of_several_meetings_counts() {
        let meetings = [meeting(2, &[1, 2]), meeting(3, &[5]), meeting(2, &[3])];
        assert_eq!(verdict(&meetings, &[3, 5], Went::Well, Went::Well), Verdict::Confirmed { meeting: 2, crash: 0 });
        assert_eq!(verdict(&meetings, &[], Went::Well, Went::Well), Verdict::Recovered { images: 3 });
    }

    #[test]
    fn what_was_not_tried_is_not_harmless() {
        let went = |crash: &Crash| if crash.seq == 2 { Went::NotTried } else { Went::Well };
        let verdicts = judge(&[meeting(2, &[1, 2])], went, |_| Went::Well, |_| Went::Well);
        assert_eq!(verdicts[&(SiteId(1), SiteId(2))], Verdict::Unfinished);
    }
}
