//! From failing images to bugs.
//!
//! A bug opens a window: from some store on, a crash leaves what recovery cannot handle, until a later store closes it. All
//! failure points in the window fail, whatever the message, and they have one cause: what was done when it opened.

/// What is known about a failure point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointVerdict {
    Good,
    Bad,
    NotTried,
}

/// Failure points that fail one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The last one before that does not fail, by position.
    pub before: Option<usize>,
    pub first: usize,
    pub last: usize,
    /// The next one that does not fail.
    pub after: Option<usize>,
    /// How many fail.
    pub bad: usize,
}

/// Finds the windows in the verdicts of all failure points, in the order of the run.
pub fn windows(verdicts: &[PointVerdict]) -> Vec<Window> {
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
            (PointVerdict::Bad, None) => open = Some(Window { before: good, first: i, last: i, after: None, bad: 1 }),
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
        let window = |before, first, last, after, bad| Window { before, first, last, after, bad };
        assert_eq!(windows(&[Good, Good]), []);
        assert_eq!(windows(&[Good, Bad, Bad, Good]), [window(Some(0), 1, 2, Some(3), 2)]);
        assert_eq!(windows(&[Bad, Good, Bad]), [window(None, 0, 0, Some(1), 1), window(Some(1), 2, 2, None, 1)]);
        assert_eq!(windows(&[Good, Bad, NotTried, Bad, Good]), [window(Some(0), 1, 3, Some(4), 2)]);
    }
}
