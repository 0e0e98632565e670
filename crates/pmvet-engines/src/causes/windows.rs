//! Windows of failures: from failing images to bugs.
//!
//! A bug opens a window: from some store on, a crash leaves what recovery cannot handle, until a later store closes it. All
//! failure points in the window fail, and they have one cause: what opened it.
//!
//! Windows of two bugs may touch: a pool that cannot be opened while it is made, and one that opens without what it should hold. If
//! recovery first fails in one way and from some point on in another, there are two windows. If the ways of failing alternate, there is
//! one: the broken state is the same, and only the way it shows varies.

use pmvet_findings::Outcome;

/// What is known about a failure point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointVerdict {
    Good,
    Bad,
    NotTried,
}

/// Failure points in a row that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Position of the last failure point before it, which does not fail, or fails differently.
    pub(crate) before: Option<usize>,
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// The next one that does not fail, or fails differently.
    pub(crate) after: Option<usize>,
    /// How many of its points fail.
    pub(crate) bad: usize,
    /// Where the first window of a touching group opens.
    pub(crate) opened: usize,
    /// `after` fails too, in another way.
    pub(crate) fails_on: bool,
}

/// How a recovery fails: tells failures apart regardless of what they print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureMode {
    Exit(i32),
    Signal(i32),
    Hang,
    Oracle,
    Content,
}

impl From<&Outcome> for FailureMode {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Exit { status } => Self::Exit(*status),
            Outcome::Signal { signal, .. } => Self::Signal(*signal),
            Outcome::Hang { .. } => Self::Hang,
            Outcome::Oracle { .. } => Self::Oracle,
            Outcome::Content { .. } => Self::Content,
        }
    }
}

impl Window {
    /// Whether it opens where recovery already failed in another way, and ends where recovery works.
    pub(crate) fn follows_another(&self) -> bool {
        self.first != self.opened && self.after.is_some() && !self.fails_on
    }

    /// Splits it into one window for each way of failing, if these follow each other.
    pub(crate) fn by_mode<M: PartialEq>(self, mode: impl Fn(usize) -> Option<M>) -> Vec<Self> {
        let mut parts: Vec<(M, Self)> = Vec::new();
        for at in self.first..=self.last {
            let Some(mode) = mode(at) else { continue };
            if let Some((last, part)) = parts.last_mut()
                && *last == mode
            {
                part.last = at;
                part.bad += 1;
                continue;
            }
            if parts.iter().any(|(known, _)| *known == mode) {
                return vec![self];
            }
            let before = match parts.last_mut() {
                Some((_, part)) => {
                    (part.after, part.fails_on) = (Some(at), true);
                    Some(part.last)
                }
                None => self.before,
            };
            parts.push((mode, Self { before, first: at, last: at, bad: 1, ..self }));
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }
}

/// Finds the windows in the verdicts of all failure points, in the order of the run.
pub(crate) fn windows(verdicts: &[PointVerdict]) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    let mut open: Option<Window> = None;
    let mut good = None;
    for (i, verdict) in verdicts.iter().enumerate() {
        match (verdict, &mut open) {
            (PointVerdict::Good, _) => {
                good = Some(i);
                windows.extend(open.take().map(|window| Window { after: good, ..window }));
            }
            (PointVerdict::Bad, Some(window)) => {
                window.last = i;
                window.bad += 1;
            }
            (PointVerdict::Bad, None) => {
                open =
                    Some(Window { before: good, first: i, last: i, after: None, bad: 1, opened: i, fails_on: false });
            }
            (PointVerdict::NotTried, _) => {}
        }
    }
    windows.extend(open);
    windows
}

#[cfg(test)]
mod tests {
    use super::PointVerdict::{Bad, Good, NotTried};
    use super::*;

    #[test]
    fn a_window_is_what_lies_between_good_points() {
        let window = |before, first, last, after, bad| Window {
            before,
            first,
            last,
            after,
            bad,
            opened: first,
            fails_on: false,
        };
        assert_eq!(windows(&[Good, Good]), []);
        assert_eq!(windows(&[Good, Bad, Bad, Good]), [window(Some(0), 1, 2, Some(3), 2)]);
        assert_eq!(windows(&[Bad, Good, Bad]), [window(None, 0, 0, Some(1), 1), window(Some(1), 2, 2, None, 1)]);
        assert_eq!(windows(&[Good, Bad, NotTried, Bad, Good]), [window(Some(0), 1, 3, Some(4), 2)]);
    }

    #[test]
    fn ways_of_failing_that_follow_each_other_are_windows_of_their_own() {
        let modes = |text: &str| {
            let verdicts: Vec<PointVerdict> = text
                .bytes()
                .map(|c| {
                    if c == b'.' {
                        Good
                    } else if c == b'?' {
                        NotTried
                    } else {
                        Bad
                    }
                })
                .collect();
            let mode = |at: usize| match text.as_bytes()[at] {
                b'.' | b'?' => None,
                status => Some(FailureMode::Exit(i32::from(status))),
            };
            let all = windows(&verdicts).into_iter().flat_map(|window| window.by_mode(mode));
            all.map(|w| (w.before, w.first, w.last, w.after, w.bad, w.fails_on)).collect::<Vec<_>>()
        };
        assert_eq!(modes(".aa?abb."), [(Some(0), 1, 4, Some(5), 3, true), (Some(4), 5, 6, Some(7), 2, false)]);
        assert_eq!(modes("ab"), [(None, 0, 0, Some(1), 1, true), (Some(0), 1, 1, None, 1, false)]);
        assert_eq!(modes(".aba."), [(Some(0), 1, 3, Some(4), 3, false)]);
    }
}
