//! The pending lines of a run.

use std::cell::Cell;

use pmvet_events::FileId;
use rustc_hash::FxHashMap;

use crate::line::Line;
use crate::{LineContent, LineId};

/// Lines that share an entry of the table: programs mostly stay near one place, so the entry found last is often the right
/// one.
const GROUP: u64 = 64;
const NONE: u32 = u32::MAX;

/// Lines live in slots that are reused with their allocations, since programs make the same few lines pending and
/// persistent all the time.
#[derive(Debug, Default)]
pub(crate) struct PendingLineTable {
    by_id: FxHashMap<(FileId, u64), u32>,
    groups: Vec<Group>,
    free_groups: Vec<u32>,
    /// The group that was found last.
    last: Cell<Option<((FileId, u64), u32)>>,
    slots: Vec<Line>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Group {
    slots: [u32; GROUP as usize],
    used: u32,
}

/// A line in a flush buffer: its slot, and which use of the slot is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) slot: u32,
    pub(crate) life: u32,
}

fn split(id: LineId) -> ((FileId, u64), usize) {
    ((id.file, id.index / GROUP), (id.index % GROUP) as usize)
}

impl PendingLineTable {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn group(&self, key: (FileId, u64)) -> Option<u32> {
        if let Some((last, group)) = self.last.get()
            && last == key
        {
            return Some(group);
        }
        let group = self.by_id.get(&key).copied()?;
        self.last.set(Some((key, group)));
        Some(group)
    }

    #[inline]
    pub(crate) fn find(&self, id: LineId) -> Option<u32> {
        let (key, at) = split(id);
        let slot = self.groups[self.group(key)? as usize].slots[at];
        (slot != NONE).then_some(slot)
    }

    pub(crate) fn get(&self, slot: u32) -> &Line {
        &self.slots[slot as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Line {
        &mut self.slots[slot as usize]
    }

    /// The line in the slot, if it is still the one meant.
    pub(crate) fn resolve(&mut self, at: SlotRef) -> Option<&mut Line> {
        self.slots.get_mut(at.slot as usize).filter(|line| line.life == at.life)
    }

    #[inline]
    pub(crate) fn find_or_insert(&mut self, id: LineId, bound: impl FnOnce() -> LineContent) -> u32 {
        let (key, at) = split(id);
        let group = self.group(key).unwrap_or_else(|| self.new_group(key));
        let group = &mut self.groups[group as usize];
        if group.slots[at] != NONE {
            return group.slots[at];
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize].reset(id, bound());
                slot
            }
            None => {
                self.slots.push(Line::new(id, bound()));
                self.slots.len() as u32 - 1
            }
        };
        group.slots[at] = slot;
        group.used += 1;
        self.len += 1;
        slot
    }

    fn new_group(&mut self, key: (FileId, u64)) -> u32 {
        let group = self.free_groups.pop().unwrap_or_else(|| {
            self.groups.push(Group { slots: [NONE; GROUP as usize], used: 0 });
            self.groups.len() as u32 - 1
        });
        self.by_id.insert(key, group);
        self.last.set(Some((key, group)));
        group
    }

    /// Removes a line that is persistent.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        let line = &mut self.slots[slot as usize];
        line.life = line.life.wrapping_add(1);
        let (key, at) = split(line.id);
        self.free.push(slot);
        let Some(index) = self.group(key) else { return };
        let group = &mut self.groups[index as usize];
        group.slots[at] = NONE;
        group.used -= 1;
        self.len -= 1;
        if group.used == 0 {
            self.by_id.remove(&key);
            self.free_groups.push(index);
            self.last.set(None);
        }
    }

    /// All lines, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Line> {
        let groups = self.by_id.values().map(|&group| &self.groups[group as usize]);
        groups.flat_map(|group| group.slots).filter(|&slot| slot != NONE).map(|slot| self.get(slot))
    }

    /// The lines of a file with an index in `first..=last`, in the order of the file.
    pub(crate) fn in_range(&self, first: LineId, last: LineId) -> Vec<u32> {
        let (from, to) = (first.index / GROUP, last.index / GROUP);
        let mut groups: Vec<(u64, u32)> = if to - from < self.by_id.len() as u64 {
            (from..=to).filter_map(|at| Some((at, *self.by_id.get(&(first.file, at))?))).collect()
        } else {
            let wanted = |(file, at): (FileId, u64)| file == first.file && (from..=to).contains(&at);
            self.by_id.iter().filter(|(key, _)| wanted(**key)).map(|(key, &group)| (key.1, group)).collect()
        };
        groups.sort_unstable();
        let slots = groups.into_iter().flat_map(|(_, group)| self.groups[group as usize].slots);
        let wanted = |slot: &u32| *slot != NONE && (first.index..=last.index).contains(&self.get(*slot).id.index);
        slots.filter(wanted).collect()
    }
}
