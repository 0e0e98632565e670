//! Allocators: which functions allocate memory, and where they leave their result.

use pmvet_events::plan::Plan;

use crate::dynamorio;

/// Where a function has its request, and where it leaves its result. Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocator {
    size: Option<u8>,
    /// All of it, or per unit of `size`.
    bytes: u64,
    out: Option<u8>,
    base: Base,
    /// The result is a `PMEMoid`: a pool's number, then an offset.
    oid: bool,
}

/// What the result is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Nothing,
    Argument(u8),
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    pub(super) len: u64,
    pub(super) base: u64,
    out: Option<u64>,
}

impl Request {
    /// For `len` bytes, relative to `base`.
    pub(super) fn new(base: u64, len: u64) -> Self {
        Self { len, base, out: None }
    }
}

/// Those of libpmemobj outside of transactions, and those that the plan names, but not functions that may return memory
/// in use, such as `realloc`.
pub(crate) fn functions(plan: &Plan) -> impl Iterator<Item = (String, Allocator)> {
    let pool = Base::Argument(0);
    let oid = Allocator { size: Some(2), bytes: 1, out: Some(1), base: pool, oid: true };
    let reserve = Allocator { out: None, ..oid };
    let built_in = [
        ("pmemobj_alloc", oid),
        ("pmemobj_xalloc", oid),
        ("pmemobj_zalloc", oid),
        ("pmemobj_reserve", reserve),
        ("pmemobj_xreserve", reserve),
    ];
    let named = plan.alloc.iter().map(|f| {
        let base = f.base.map_or(Base::Nothing, Base::Argument);
        (f.function.clone(), Allocator { size: f.size, bytes: f.bytes.unwrap_or(1), out: f.out, base, oid: false })
    });
    built_in.into_iter().map(|(name, function)| (name.to_owned(), function)).chain(named)
}

impl Allocator {
    /// At the call.
    pub(crate) fn request(&self, arguments: &[u64; 4]) -> Request {
        let argument = |number: u8| arguments[usize::from(number) % arguments.len()];
        Request {
            len: self.size.map_or(1, argument).saturating_mul(self.bytes),
            base: match self.base {
                Base::Nothing => 0,
                Base::Argument(number) => argument(number),
            },
            out: self.out.map(argument),
        }
    }

    /// At the return: the memory that it has allocated, if any. `results` are the two registers that results come in.
    pub(crate) fn result(&self, request: Request, results: (u64, u64)) -> Option<(u64, u64)> {
        let found = match request.out {
            // These return whether they failed.
            Some(out) if self.oid => (results.0 as i32 == 0).then(|| dynamorio::read_word(out.wrapping_add(8)))??,
            Some(out) => dynamorio::read_word(out)?,
            None if self.oid => results.1,
            None => results.0,
        };
        (found != 0).then(|| (request.base.wrapping_add(found), request.len))
    }
}
