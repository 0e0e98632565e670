//! The failure points of a run by their call paths, and the outcome of each.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::finding::Frame;

/// Call paths share their outer frames. The tree is a flat list, because a call path may be deeper than the nesting that JSON readers
/// accept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailurePointTree {
    /// A parent comes before its children.
    pub nodes: Vec<Node>,
}

/// A frame that failure points share, at the end of one call path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The index of the node that calls it; nothing for an outermost frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// The frame as its `Display` writes it: `insert (list.c:42)`. Reports use it to find the place of a finding.
    pub label: String,
    /// Source file as the compiler recorded it, if the line is known, too.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "crate::lossy::optional_path")]
    pub file: Option<PathBuf>,
    /// In the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Not the user's code.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub library: bool,
    /// Failure points with exactly this call path.
    #[serde(flatten)]
    pub own: Tally,
}

/// Counts of failure points by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Recovery did what it always does.
    pub ok: u64,
    /// Recovery failed, or what it left was wrong.
    pub failed: u64,
    /// Unknown: there was no time, or another shard tries it.
    pub not_tried: u64,
}

impl Tally {
    /// One failure point that recovers.
    pub const OK: Tally = Tally { ok: 1, failed: 0, not_tried: 0 };
    /// One failure point that does not.
    pub const FAILED: Tally = Tally { ok: 0, failed: 1, not_tried: 0 };
    /// One failure point that was not tried.
    pub const NOT_TRIED: Tally = Tally { ok: 0, failed: 0, not_tried: 1 };

    /// All of them.
    pub fn total(self) -> u64 {
        self.ok.saturating_add(self.failed).saturating_add(self.not_tried)
    }

    /// Adds up.
    pub fn add(&mut self, other: Tally) {
        self.ok = self.ok.saturating_add(other.ok);
        self.failed = self.failed.saturating_add(other.failed);
        self.not_tried = self.not_tried.saturating_add(other.not_tried);
    }
}

impl FailurePointTree {
    /// Per node, the sum of its own failure points and those below it.
    pub fn totals(&self) -> Vec<Tally> {
        let mut totals: Vec<Tally> = self.nodes.iter().map(|node| node.own).collect();
        for child in (0..self.nodes.len()).rev() {
            if let Some(parent) = self.parent(child) {
                let below = totals[child];
                totals[parent].add(below);
            }
        }
        totals
    }

    /// The user's function that has the failure points of this node: its own, or that of its nearest caller.
    pub fn user_function(&self, node: usize) -> Option<&str> {
        let user = self.callers(node).find(|node| !node.library).or(self.nodes.get(node))?;
        Some(user.label.split(" (").next().unwrap_or(&user.label))
    }

    /// Outcomes of failure points by the user's source lines: the line of each, or that of its nearest caller that has one.
    pub fn by_source_line(&self) -> BTreeMap<(&Path, u32), Tally> {
        let mut lines: BTreeMap<(&Path, u32), Tally> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.own.total() > 0) {
            let mut callers = self.callers(index).filter(|caller| !caller.library);
            if let Some(place) = callers.find_map(|caller| Some((caller.file.as_deref()?, caller.line?))) {
                lines.entry(place).or_default().add(node.own);
            }
        }
        lines
    }

    /// The node and its callers, innermost first.
    fn callers(&self, node: usize) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(node), |&node| self.parent(node)).map_while(|at| self.nodes.get(at))
    }

    /// The parent, if there is one. A tree that was read from a file may name an impossible one.
    pub fn parent(&self, node: usize) -> Option<usize> {
        self.nodes.get(node)?.parent.map(|parent| parent as usize).filter(|&parent| parent < node)
    }
}

/// Grows a tree path by path.
#[derive(Debug, Default)]
pub struct Builder {
    tree: FailurePointTree,
    index: HashMap<(Option<u32>, String), u32>,
}

impl Builder {
    /// Adds outcomes of failure points with this stack. An empty stack adds nothing.
    pub fn add_stack(&mut self, stack: &[Frame], tally: Tally) {
        let node = |frame: &Frame| {
            let place = frame.file.clone().zip(frame.line.filter(|&line| line > 0));
            let (file, line) = place.unzip();
            Node {
                parent: None,
                label: frame.to_string(),
                file,
                line,
                library: !frame.is_user(),
                own: Tally::default(),
            }
        };
        self.add_path(stack.iter().rev().map(node), tally);
    }

    /// The same for a call path of labels, outermost first, none of which is a library's.
    pub fn add<L: Into<String>>(&mut self, path: impl IntoIterator<Item = L>, tally: Tally) {
        let node = |label: L| Node {
            parent: None,
            label: label.into(),
            file: None,
            line: None,
            library: false,
            own: Tally::default(),
        };
        self.add_path(path.into_iter().map(node), tally);
    }

    fn add_path(&mut self, path: impl Iterator<Item = Node>, tally: Tally) {
        let mut at = None;
        for node in path {
            let next = u32::try_from(self.tree.nodes.len()).unwrap_or(u32::MAX);
            let nodes = &mut self.tree.nodes;
            at = Some(*self.index.entry((at, node.label.clone())).or_insert_with(|| {
                nodes.push(Node { parent: at, ..node });
                next
            }));
        }
        if let Some(node) = at.and_then(|node| self.tree.nodes.get_mut(node as usize)) {
            node.own.add(tally);
        }
    }

    /// The tree with all that was added.
    pub fn finish(self) -> FailurePointTree {
        self.tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_share_their_outer_frames() {
        let frame = |function: &str, module: &str| Frame {
            function: Some(function.into()),
            module: Some(module.into()),
            ..Frame::default()
        };
        let stack = |function| vec![frame("flush", "/lib/l.so"), frame(function, "/home/x"), frame("main", "/home/x")];
        let mut builder = Builder::default();
        builder.add_stack(&stack("insert")[1..], Tally::OK);
        builder.add(["main (x)", "insert (x)"], Tally::FAILED);
        builder.add_stack(&stack("remove"), Tally::NOT_TRIED);
        builder.add_stack(&[], Tally::OK);
        let tree = builder.finish();
        assert_eq!(tree.user_function(3), Some("remove"), "the library is called by it");
        assert_eq!(tree.user_function(4), None);
        assert_eq!(tree.nodes.len(), 4);
        assert_eq!(tree.totals()[0], Tally { ok: 1, failed: 1, not_tried: 1 });
        assert_eq!(tree.totals()[1], Tally { ok: 1, failed: 1, not_tried: 0 });
    }

    #[test]
    fn failure_points_in_libraries_count_for_the_line_that_calls_them() {
        let frame = |module: &str, place: Option<(&str, u32)>| Frame {
            function: Some("f".into()),
            file: place.map(|(file, _)| file.into()),
            line: place.map(|(_, line)| line),
            module: Some(module.into()),
            ..Frame::default()
        };
        let called = |line| frame("/home/x", Some(("/home/x.c", line)));
        let mut builder = Builder::default();
        builder.add_stack(&[called(7)], Tally::OK);
        builder.add_stack(&[frame("/usr/lib/l.so", Some(("/usr/src/l.c", 1))), called(7)], Tally::FAILED);
        builder.add_stack(&[frame("/home/x", None), called(9)], Tally::NOT_TRIED);
        builder.add_stack(&[frame("/home/x", None)], Tally::OK);
        let tree = builder.finish();
        let lines: Vec<_> = tree.by_source_line().into_iter().map(|((_, line), tally)| (line, tally)).collect();
        assert_eq!(lines, [(7, Tally { ok: 1, failed: 1, not_tried: 0 }), (9, Tally::NOT_TRIED)]);
    }

    #[test]
    fn a_parent_that_cannot_be_is_none() {
        let own = Tally::OK;
        let nodes = [Some(0), Some(9), Some(0)].map(|parent| Node {
            parent,
            label: "f".into(),
            file: None,
            line: None,
            library: false,
            own,
        });
        let tree = FailurePointTree { nodes: nodes.into() };
        assert_eq!(tree.totals()[0].total(), 2);
        assert_eq!(tree.parent(1), None);
    }
}
