use std::ffi::OsString;
use pmvet_events::{Event, plan::Plan, What};
use pmvet_target::*;
struct Count(std::collections::BTreeMap<&'static str,u64>, image::Images, bool);
impl Sink for Count { fn event(&mut self, e: &Event<'_>, p: &dyn pmvet_events::Places) -> Result<(), collect::SinkError> {
    *self.0.entry(e.what.name()).or_default() += 1;
    if self.2 { eprintln!("{e:?}"); }
    if let What::Load{..} = e.what { return Ok(()) }
    self.1.event(e,p) } }
fn main() {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|a| a == guard::COMMAND) { std::process::exit(guard::run(&args[1..])); }
    let mut has = |n: &str| { let l = args.len(); args.retain(|a| a != n); l != args.len() };
    let (loads, bare, v, det) = (has("--loads"), has("--bare"), has("--v"), has("--det"));
    let program = program::Program::find(&args).unwrap_or_else(|e| { eprintln!("{e}"); std::process::exit(2) });
    let plan = Plan { loads, deterministic: det, snapshots: true, pm: vec!["/mnt/pmem*/**".into(), "/dev/shm/**".into()], sync: vec![] };
    let mut c = Count(Default::default(), Default::default(), v);
    let r = launch(&Launch { program, plan, follow_forks: true, bare }, &install::Install::find().unwrap(), &mut c);
    eprintln!("{r:?}"); eprintln!("{:?}", c.0); eprintln!("{:?}", c.1.check());
}
