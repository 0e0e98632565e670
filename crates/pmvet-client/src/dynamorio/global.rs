//! State of the process that is set once, when DynamoRIO loads the client, and then read from everywhere.

use std::ops::Deref;
use std::sync::OnceLock;

use super::fail;

/// A static that one file owns. Reading it before it is set ends the target.
#[derive(Debug)]
pub(crate) struct Global<T>(OnceLock<T>);

impl<T> Global<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn set(&self, value: T) {
        if self.0.set(value).is_err() {
            fail("the client was loaded twice");
        }
    }
}

impl<T> Deref for Global<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.0.get() {
            Some(value) => value,
            None => fail("the client was used before it was set up"),
        }
    }
}
