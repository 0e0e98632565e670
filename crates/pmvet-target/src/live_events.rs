//! Passes the events of a run to an analysis while the run is recorded.
//!
//! They travel in batches, encoded as in a ring: reading them from the trace that is being written would cost the
//! reader, mostly the slower side, a third of its time.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use pmvet_events::event::Event;
use pmvet_events::file::{Definitions, TraceError};
use pmvet_events::ids::ThreadId;
use pmvet_events::wire::{self, Front};

use crate::recording::Recording;
use crate::shutdown::{ClockCheck, is_over};

/// A batch is sent when it has this many bytes.
const BATCH: usize = 256 << 10;
/// How many batches may be under way: about a million events. A target with many threads takes all cores, so the
/// analysis falls behind and has to catch up on one core after the run. So the recorder, and with it the target, waits
/// once it is too far ahead. With a smaller bound, threads that spin on a lock whose owner waits would cost more than is
/// gained.
const UNDER_WAY: usize = 160;

enum Parcel {
    Events(Vec<u8>),
    End(Definitions),
}

/// Where the recorder puts events.
#[derive(Debug)]
pub struct Feed {
    batch: Vec<u8>,
    parcels: SyncSender<Parcel>,
    empty: Receiver<Vec<u8>>,
}

/// Where they come out.
#[derive(Debug)]
pub struct LiveEvents {
    parcels: Receiver<Parcel>,
    empty: Sender<Vec<u8>>,
}

/// Both ends of a new channel for the events of one run.
pub fn live() -> (Feed, LiveEvents) {
    let (send, parcels) = sync_channel(UNDER_WAY);
    let (give_back, empty) = channel();
    (Feed { batch: Vec::new(), parcels: send, empty }, LiveEvents { parcels, empty: give_back })
}

impl Feed {
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        self.batch.extend_from_slice(&u64::from(event.thread.0).to_le_bytes());
        wire::write(event, &mut self.batch);
        if self.batch.len() >= BATCH {
            self.send();
        }
    }

    fn send(&mut self) {
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH + wire::MAX_RECORD));
        let full = std::mem::replace(&mut self.batch, next);
        // A reader that has stopped has its own reason and reports it.
        let _ = self.parcels.send(Parcel::Events(full));
    }

    /// Sends the events of a run that was recorded earlier, as if it ran now.
    pub fn replay(mut self, recording: &Recording) -> Result<(), TraceError> {
        let (mut reader, mut clock) = (recording.read()?, ClockCheck::default());
        while let Some(event) = reader.next()? {
            if clock.is_due() && is_over() {
                return Ok(());
            }
            self.event(&event);
        }
        self.end(reader.into_places());
        Ok(())
    }

    /// Ends the stream and sends the places that the events refer to.
    pub(crate) fn end(mut self, places: Definitions) {
        self.send();
        let _ = self.parcels.send(Parcel::End(places));
    }
}

impl LiveEvents {
    /// Calls `each` for each event of the run. Returns the places they refer to, unless the recording has failed or
    /// pmvet shuts down.
    pub fn for_each(self, mut each: impl FnMut(&Event<'_>)) -> Option<Definitions> {
        while !is_over() {
            match self.parcels.recv().ok()? {
                Parcel::End(places) => return Some(places),
                Parcel::Events(mut batch) => {
                    let mut bytes = batch.as_slice();
                    while let Some((thread, record)) = bytes.split_first_chunk::<8>() {
                        let thread = ThreadId(u64::from_le_bytes(*thread) as u32);
                        // `Feed` writes only well-formed records.
                        let Ok(Front::Record { event, len }) = wire::read(record, thread) else { break };
                        each(&event);
                        bytes = &record[len..];
                    }
                    batch.clear();
                    let _ = self.empty.send(batch);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmvet_events::event::What;
    use pmvet_events::ids::{ContextId, SiteId};

    fn event(seq: u64, what: What<'_>) -> Event<'_> {
        Event { seq, thread: ThreadId(seq as u32 % 7), site: SiteId(5), context: ContextId(9), what }
    }

    #[test]
    fn events_arrive_as_they_were_sent() {
        let (mut feed, live) = live();
        let path = std::path::PathBuf::from("x".repeat(300));
        let number = |seq: u64| match seq % 3 {
            0 => What::Load { addr: seq * 8, size: 8 },
            1 => What::Exec { path: &path },
            _ => What::Rmw { addr: seq, old: &[1, 2], new: &[3, 4], stored: true, discards: false },
        };
        // More than one batch.
        let count = BATCH as u64 / 40;
        let mut seen = 0;
        let places = std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..count).for_each(|seq| feed.event(&event(seq, number(seq))));
                feed.end(Definitions::default());
            });
            live.for_each(|got| {
                assert_eq!(*got, event(seen, number(seen)));
                seen += 1;
            })
        });
        assert!(places.is_some());
        assert_eq!(seen, count);
    }

    #[test]
    fn a_recorder_that_fails_ends_it() {
        let (mut feed, live) = live();
        feed.event(&event(1, What::ThreadExit));
        drop(feed);
        assert!(live.for_each(|_| {}).is_none());
    }

    #[test]
    fn nobody_has_to_listen() {
        let (mut feed, live) = live();
        drop(live);
        (0..BATCH as u64 / 8).for_each(|seq| feed.event(&event(seq, What::ThreadExit)));
        feed.end(Definitions::default());
    }
}
