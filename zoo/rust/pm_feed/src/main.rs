//! A persistent feed: `post AUTHOR TEXT`, `take` (removes the oldest post) and `like`.
//!
//! A post is durable as soon as it is in the inbox, whose number commits it: it is the post's place in the feed, counted from
//! one. The next operation, or recovery, copies it to the end of the feed and moves the tail past it. An inbox whose number is
//! not the next one was copied already.

use std::io::{self, BufRead};
use std::path::Path;
use std::process::ExitCode;
use zoo_pm::{bug_number, Pool, LINE, WORD};

const BUG: u32 = bug_number(option_env!("ZOO_BUG"));

const POOL_LEN: usize = 64 * 1024;
const MAGIC: u64 = u64::from_le_bytes(*b"pmfeedv1");

// Header words, each in a line of its own.
const MAGIC_AT: usize = 0;
const HEAD_AT: usize = LINE;
const TAIL_AT: usize = 2 * LINE;
const LIKES_AT: usize = 3 * LINE;
const NUMBER_AT: usize = 4 * LINE;
// A post has one line: the words of its author, and those of its text.
const INBOX_AT: usize = 5 * LINE;
const FEED_AT: usize = 6 * LINE;
const POSTS: u64 = (POOL_LEN - FEED_AT) as u64 / LINE as u64;
const POST_WORDS: usize = 4;

/// So many likes are written to the pool together, with a bug.
const LIKES_TOGETHER: u64 = 4;

struct Feed {
    pool: Pool,
    likes: u64,
    head: u64,
}

impl Feed {
    fn open(path: &Path) -> io::Result<Self> {
        let pool = Pool::open(path, POOL_LEN)?;
        if pool.load(MAGIC_AT) != MAGIC {
            pool.store(MAGIC_AT, MAGIC);
            pool.persist(MAGIC_AT, WORD);
        }
        let feed = Self { likes: pool.load(LIKES_AT), head: pool.load(HEAD_AT), pool };
        feed.recover();
        Ok(feed)
    }

    fn recover(&self) {
        // BUG(3): what is in the inbox is dropped
        if BUG == 3 && self.pool.load(NUMBER_AT) > self.pool.load(TAIL_AT) {
            self.set(NUMBER_AT, 0); // BLAME(3)
        }
        // BUG(2): what is in the inbox is appended, also if it was already
        if BUG == 2 && self.pool.load(NUMBER_AT) != 0 {
            self.append(self.pool.load(TAIL_AT)); // BLAME(2)
        }
        self.empty_inbox();
    }

    fn set(&self, at: usize, value: u64) {
        self.pool.store(at, value);
        self.pool.persist(at, WORD);
    }

    /// Copies the inbox to a place of the feed, and moves the tail past it.
    fn append(&self, place: u64) {
        let to = FEED_AT + (place % POSTS) as usize * LINE;
        for word in (0..POST_WORDS).map(|i| i * WORD) {
            self.pool.store(to + word, self.pool.load(INBOX_AT + word));
        }
        self.pool.persist(to, LINE);
        self.set(TAIL_AT, place + 1); // BLAME(2)
    }

    fn empty_inbox(&self) {
        let number = self.pool.load(NUMBER_AT);
        if number == 0 {
            return;
        }
        if number == self.pool.load(TAIL_AT) + 1 {
            self.append(number - 1); // BLAME(2, 3)
        }
        self.set(NUMBER_AT, 0); // BLAME(2)
    }

    fn post(&self, author: &str, text: &str) -> &'static str {
        self.empty_inbox(); // BLAME(3)
        let place = self.pool.load(TAIL_AT);
        if place - self.head >= POSTS {
            return "full";
        }
        for (half, words) in [author, text].into_iter().enumerate() {
            let mut bytes = [0; 2 * WORD];
            let len = words.len().min(bytes.len());
            bytes[..len].copy_from_slice(&words.as_bytes()[..len]);
            let at = INBOX_AT + half * bytes.len();
            self.pool.store(at, u64::from_le_bytes(bytes[..WORD].try_into().expect("a word")));
            self.pool.store(at + WORD, u64::from_le_bytes(bytes[WORD..].try_into().expect("a word")));
        }
        self.pool.persist(INBOX_AT, LINE);
        if BUG == 1 {
            // BUG(1): the line of the inbox's number is made durable before the number is stored
            self.pool.persist(NUMBER_AT, WORD); // BLAME(1)
            self.pool.store(NUMBER_AT, place + 1); // BLAME(1)
        } else {
            self.set(NUMBER_AT, place + 1); // BLAME(3)
        }
        "ok"
    }

    fn take(&mut self) -> &'static str {
        self.empty_inbox();
        if self.head == self.pool.load(TAIL_AT) {
            return "empty";
        }
        self.head += 1;
        // BUG(4): the line of the tail is flushed, not that of the head
        let line = if BUG == 4 { TAIL_AT } else { HEAD_AT };
        self.pool.store(HEAD_AT, self.head); // BLAME(4)
        self.pool.persist(line, WORD); // BLAME(4)
        "ok"
    }

    fn like(&mut self) -> &'static str {
        self.likes += 1;
        // BUG(5): likes are written four at a time
        if BUG != 5 || self.likes.is_multiple_of(LIKES_TOGETHER) {
            self.set(LIKES_AT, self.likes); // BLAME(5)
        }
        "ok"
    }

    fn close(&self) {
        if self.pool.load(HEAD_AT) != self.head {
            self.set(HEAD_AT, self.head);
        }
        if self.pool.load(LIKES_AT) != self.likes {
            self.set(LIKES_AT, self.likes); // BLAME(5)
        }
        self.empty_inbox();
    }

    fn text(&self, at: usize) -> String {
        let bytes: Vec<u8> = [at, at + WORD].into_iter().flat_map(|at| self.pool.load(at).to_le_bytes()).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn dump(&self) {
        println!("likes {}", self.likes);
        for place in self.head..self.pool.load(TAIL_AT) {
            let at = FEED_AT + (place % POSTS) as usize * LINE;
            println!("post {} {}", self.text(at), self.text(at + 2 * WORD));
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let (pool, wants_dump) = match &args[1..] {
        [pool] => (pool, false),
        [pool, word] if word == "dump" => (pool, true),
        _ => {
            eprintln!("usage: pm_feed POOL [dump]");
            return ExitCode::from(2);
        }
    };
    let mut feed = match Feed::open(Path::new(pool)) {
        Ok(feed) => feed,
        Err(why) => {
            eprintln!("{pool}: {why}");
            return ExitCode::FAILURE;
        }
    };
    if wants_dump {
        feed.dump();
        return ExitCode::SUCCESS;
    }
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let reply = match words[..] {
            ["post", author, text] => feed.post(author, text),
            ["take"] => feed.take(),
            ["like"] => feed.like(),
            _ => "?",
        };
        println!("{reply}");
    }
    feed.close();
    ExitCode::SUCCESS
}
