//! The operations of a server: its clients' requests on their connections, and its replies.
//!
//! On a connection, requests and replies take turns. What was read before a reply is several requests, a line each, if the reply has at
//! least as many lines; otherwise it is one request, such as a command and the value that follows it. A request is acknowledged when its
//! line of the reply was written, or, if the numbers of lines differ, when the end of the reply was.

use std::collections::{BTreeSet, HashMap};

use pmvet_events::ThreadId;
use pmvet_target::sandbox::requests::Request;

use super::{Acknowledgement, Indistinct, OperationSigns, OperationSpan, Promise, Promises, Sign};

/// The operations of a server in one run.
#[derive(Debug)]
pub struct RequestedOperations {
    /// In the order in which they were acknowledged: a server that makes one request wait for another replies in the order in which it
    /// executes them.
    pub requests: Vec<Request>,
    /// The requests as readable text.
    pub texts: Vec<String>,
    /// Requests that may be several operations in a row, which cannot be told apart.
    pub several: BTreeSet<u32>,
    /// What was promised at each moment of the run.
    pub promises: Promises,
    /// How to tell that a request was done.
    pub how: Acknowledgement,
}

/// A line of a request.
struct Line {
    /// When its first byte was read.
    read: u64,
    reader: ThreadId,
    bytes: Vec<u8>,
}

/// Lines that were read in a row, and the replies before the next line.
#[derive(Default)]
struct Turn {
    lines: Vec<Line>,
    /// Event number and number of lines of each.
    replies: Vec<(u64, u64)>,
}

impl Turn {
    fn reply_lines(&self) -> u64 {
        self.replies.iter().map(|(_, lines)| lines).sum()
    }

    /// Whether it has several lines, and the reply has fewer.
    fn is_long(&self) -> bool {
        self.lines.len() > 1 && !self.replies.is_empty() && self.reply_lines() < self.lines.len() as u64
    }

    /// When the line with this number was acknowledged.
    fn acknowledged(&self, line: usize) -> Option<u64> {
        if self.reply_lines() != self.lines.len() as u64 {
            return self.replies.last().map(|(seq, _)| *seq);
        }
        let mut written = 0;
        let reply = self.replies.iter().find(|(_, lines)| {
            written += lines;
            written > line as u64
        });
        reply.map(|(seq, _)| *seq)
    }
}

/// What went over one connection.
#[derive(Default)]
struct Connection {
    address: String,
    greeted: bool,
    turns: Vec<Turn>,
    /// A line that is not complete yet.
    begun: Option<Line>,
}

impl Connection {
    fn read(&mut self, seq: u64, reader: ThreadId, data: &[u8]) {
        for part in data.split_inclusive(|&byte| byte == b'\n') {
            let mut line = self.begun.take().unwrap_or(Line { read: seq, reader, bytes: Vec::new() });
            line.bytes.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                self.begun = Some(line);
                return;
            }
            match self.turns.last_mut() {
                Some(turn) if turn.replies.is_empty() => turn.lines.push(line),
                _ => self.turns.push(Turn { lines: vec![line], ..Turn::default() }),
            }
        }
    }

    fn wrote(&mut self, seq: u64, lines: u64) -> Result<(), Indistinct> {
        match (self.turns.last_mut(), &self.begun) {
            (Some(turn), _) => turn.replies.push((seq, lines)),
            (None, None) => self.greeted = true,
            (None, Some(_)) => return Err(Indistinct::NoLines),
        }
        Ok(())
    }
}

impl OperationSigns {
    /// The operations that clients requested before the event with this number, the first that does not come from them.
    pub fn requested(&self, end: Option<u64>) -> Result<RequestedOperations, Indistinct> {
        let connections = self.connections(end)?;
        let turns = || connections.iter().flat_map(|connection| &connection.turns);
        if turns().flat_map(|turn| &turn.lines).any(|line| !is_text(&line.bytes)) {
            return Err(Indistinct::NoLines);
        }
        let has_long_requests = turns().any(Turn::is_long);
        let marked = self.signs.iter().any(|(.., sign)| matches!(sign, Sign::Begin { .. }));
        let mut operations = Vec::new();
        for (number, connection) in (0..).zip(&connections) {
            // A request without a reply ends its connection: only the program can say when it is done.
            let told = connection.turns.iter().filter(|turn| marked || !turn.replies.is_empty());
            for (i, turn) in (0..).zip(told) {
                let is_whole = has_long_requests || turn.reply_lines() == 0 && !turn.replies.is_empty();
                let requests: Vec<&[Line]> = match turn.lines.len() {
                    2.. if is_whole => vec![&turn.lines],
                    _ => turn.lines.chunks(1).collect(),
                };
                let several = requests.len() < turn.lines.len() && turn.reply_lines() != 1;
                for (line, lines) in requests.iter().enumerate() {
                    let request = Request {
                        connection: number,
                        address: connection.address.clone(),
                        greeted: connection.greeted,
                        turn: i,
                        answered: !turn.replies.is_empty(),
                        bytes: lines.iter().flat_map(|line| line.bytes.iter().copied()).collect(),
                    };
                    let acknowledged = match requests.len() {
                        1 => turn.replies.last().map(|(seq, _)| *seq),
                        _ => turn.acknowledged(line),
                    };
                    let (read, reader) = (lines[0].read, lines[0].reader);
                    operations.push(Operation { request, read, reader, acknowledged, several });
                }
            }
        }
        if operations.is_empty() {
            let why = turns().next().map_or(Indistinct::NoRequests, |_| Indistinct::NoReplies);
            return Err(why);
        }
        operations.sort_by_key(|operation| (operation.acknowledged.unwrap_or(u64::MAX), operation.read));
        let texts: Vec<String> = operations.iter().map(|operation| text(&operation.request.bytes)).collect();
        let (mut promises, how) = if marked {
            let lines: Vec<&str> = texts.iter().map(String::as_str).collect();
            let readers: Vec<ThreadId> = operations.iter().map(|operation| operation.reader).collect();
            (self.by_markers(&lines, &readers)?, Acknowledgement::Marker)
        } else {
            let is_even = |turn: &Turn| turn.reply_lines() == turn.lines.len() as u64 || turn.replies.is_empty();
            let how = if turns().all(is_even) { Acknowledgement::Reply } else { Acknowledgement::WholeReply };
            (by_replies(&operations), how)
        };
        let several = (0..).zip(&operations).filter(|(_, operation)| operation.several).map(|(i, _)| i).collect();
        let ended = |operation: &Operation| operation.acknowledged.unwrap_or(u64::MAX);
        let span = |o: &Operation| OperationSpan { began: o.read, ended: ended(o), thread: None };
        promises.spans = operations.iter().map(span).collect();
        let requests = operations.into_iter().map(|operation| operation.request).collect();
        Ok(RequestedOperations { requests, texts, several, promises, how })
    }

    /// Connections, in the order of their first request.
    fn connections(&self, end: Option<u64>) -> Result<Vec<Connection>, Indistinct> {
        if self.too_many_requests {
            return Err(Indistinct::TooManyRequests);
        }
        let mut all: Vec<Connection> = Vec::new();
        let mut by_socket: HashMap<u32, usize> = HashMap::new();
        for (seq, thread, sign) in &self.signs {
            match sign {
                Sign::Accepted { connection, address } => {
                    by_socket.insert(*connection, all.len());
                    all.push(Connection { address: address.clone(), ..Connection::default() });
                }
                Sign::Request { connection, data } if end.is_none_or(|end| *seq < end) => {
                    if let Some(&i) = by_socket.get(connection) {
                        all[i].read(*seq, *thread, data);
                    }
                }
                Sign::Reply { connection, lines } => {
                    if let Some(&i) = by_socket.get(connection) {
                        all[i].wrote(*seq, *lines)?;
                    }
                }
                _ => {}
            }
        }
        all.retain(|connection| !connection.turns.is_empty());
        all.sort_by_key(|connection| connection.turns[0].lines[0].read);
        Ok(all)
    }
}

struct Operation {
    request: Request,
    read: u64,
    reader: ThreadId,
    acknowledged: Option<u64>,
    several: bool,
}

fn by_replies(operations: &[Operation]) -> Promises {
    let begins = (0..).zip(operations).map(|(i, operation)| (operation.read, false, i));
    let ends = (0..).zip(operations).filter_map(|(i, operation)| Some((operation.acknowledged?, true, i)));
    let mut changes: Vec<(u64, bool, u32)> = begins.chain(ends).collect();
    changes.sort_unstable();
    let (mut done, mut open) = (BTreeSet::new(), BTreeSet::new());
    let mut promises = Promises::default();
    promises.push(0, Promise::default());
    for (seq, is_end, operation) in changes {
        if is_end {
            open.remove(&operation);
            done.insert(operation);
        } else {
            open.insert(operation);
        }
        promises.push(seq, Promise::from_operations(&done, &open));
    }
    promises
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\r' | '\n')))
}

/// On one line.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use pmvet_events::event::{Event, What};
    use pmvet_events::{ContextId, SiteId};

    /// Numbers events from 1 on.
    fn signs(events: &[What<'_>]) -> OperationSigns {
        let mut signs = OperationSigns::default();
        for (seq, what) in (1..).zip(events) {
            let thread = ThreadId(1);
            signs.event(&Event { seq, thread, site: SiteId(0), context: ContextId(0), what: *what });
        }
        signs
    }

    fn accept(connection: u32) -> What<'static> {
        What::Connection { connection, address: "127.0.0.1:7000" }
    }

    fn ask(connection: u32, text: &str) -> What<'_> {
        What::Request { connection, data: text.as_bytes() }
    }

    fn reply(connection: u32, lines: u64) -> What<'static> {
        What::Reply { connection, len: 3 * lines, lines }
    }

    fn at(operations: &RequestedOperations, seq: u64) -> (Vec<u32>, Vec<u32>) {
        let promises = &operations.promises;
        let promise = promises.get(promises.at(seq)).unwrap();
        (promise.acknowledged(), promise.open.clone())
    }

    #[test]
    fn each_connection_has_its_own_requests_and_replies() {
        let events = [
            accept(7),
            accept(9),
            ask(9, "put a 1\n"),
            ask(7, "put b 2\n"),
            reply(7, 1),
            reply(9, 1),
            ask(7, "quit\n"),
        ];
        let operations = signs(&events).requested(None).unwrap();
        assert_eq!(operations.texts, ["put b 2", "put a 1"], "what was never answered is no operation");
        assert_eq!(operations.how, Acknowledgement::Reply);
        assert_eq!(at(&operations, 5), (vec![], vec![0, 1]));
        assert_eq!(at(&operations, 6), (vec![0], vec![1]));
        let spans: Vec<_> = operations.promises.spans.iter().map(|span| (span.began, span.ended)).collect();
        assert_eq!(spans, [(4, 5), (3, 6)]);
        assert_eq!(at(&operations, 8), (vec![0, 1], vec![]));
        assert_eq!(operations.requests[1].connection, 0);
    }

    #[test]
    fn requests_that_come_together_are_told_apart_by_their_replies() {
        let events =
            [accept(1), ask(1, "put a 1\nput b 2\npu"), reply(1, 1), reply(1, 1), ask(1, "t c 3\n"), reply(1, 1)];
        let operations = signs(&events).requested(None).unwrap();
        assert_eq!(operations.texts, ["put a 1", "put b 2", "put c 3"]);
        assert_eq!(at(&operations, 4), (vec![0], vec![1, 2]));
        assert_eq!(operations.requests.iter().map(|request| request.turn).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn replies_of_several_lines_count_when_they_are_whole() {
        let events =
            [accept(1), reply(1, 1), ask(1, "list\n"), reply(1, 2), reply(1, 1), ask(1, "put a 1\n"), reply(1, 1)];
        let operations = signs(&events).requested(None).unwrap();
        assert_eq!(operations.how, Acknowledgement::WholeReply);
        assert!(operations.requests[0].greeted);
        assert_eq!(at(&operations, 5), (vec![], vec![0]));
        assert_eq!(at(&operations, 6), (vec![0], vec![]));
    }

    #[test]
    fn a_request_may_have_several_lines() {
        let events = [
            accept(1),
            ask(1, "set k 0 0 1\r\n"),
            ask(1, "v\r\n"),
            reply(1, 1),
            ask(1, "set a 0 0 1\r\nx\r\nget k\r\n"),
            reply(1, 2),
        ];
        let operations = signs(&events).requested(None).unwrap();
        assert_eq!(operations.texts, ["set k 0 0 1 v", "set a 0 0 1 x get k"]);
        assert_eq!(operations.several, [1].into(), "the second may be two");
    }

    #[test]
    fn what_asks_the_server_to_end_is_no_operation() {
        let events = [accept(1), ask(1, "put a 1\n"), reply(1, 1), accept(2), ask(2, "shutdown\n"), reply(2, 1)];
        assert_eq!(signs(&events).requested(Some(4)).unwrap().texts, ["put a 1"]);
    }

    #[test]
    fn what_cannot_be_told_apart() {
        let why = |events: &[What<'_>]| signs(events).requested(None).unwrap_err();
        assert_eq!(why(&[accept(1)]), Indistinct::NoRequests);
        assert_eq!(why(&[accept(1), ask(1, "put a 1\n")]), Indistinct::NoReplies);
        assert_eq!(why(&[accept(1), ask(1, "\u{1}\u{0}ab"), reply(1, 0)]), Indistinct::NoLines);
        assert_eq!(why(&[accept(1), ask(1, "\u{1}\u{0}ab\n"), reply(1, 0)]), Indistinct::NoLines);
    }
}
