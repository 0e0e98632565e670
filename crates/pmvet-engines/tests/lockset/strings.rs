//! What functions that read strings read beyond their ends.

use crate::script::*;

/// A counter beside a name, which other threads search with a vector string function.
#[test]
fn what_a_string_function_reads_behind_the_string_does_not_count() {
    for (name, function, module, expected) in [
        (&b"key\0"[..], "__strcmp_evex", "libc.so.6", &[][..]),
        (b"key\0", "strncmp", "libc.so.6", &[]),
        (b"a name without end", "__strcmp_evex", "libc.so.6", &[(1, 2)]),
        (b"key\0", "__memcpy_evex", "libc.so.6", &[(1, 2)]),
        (b"key\0", "strcmp", "program", &[(1, 2)]),
    ] {
        let mut s = new();
        s.put(2, 10, Y, name);
        s.persist(2, Y);
        s.public(Y + 24);
        for _ in 0..2 {
            s.store(2, 1, Y + 24);
            s.add(3, 2, What::Load { addr: Y, size: 32 });
            s.act(3);
            s.persist(2, Y);
        }
        let named = |site: SiteId| if site.0 == 2 { vec![function.to_owned()] } else { Vec::new() };
        let module_of = |site: SiteId| if site.0 == 2 { module.to_owned() } else { String::new() };
        let mut found =
            races(&s.engine.finish_with(&mut |site| Code { functions: named(site), module: module_of(site) }));
        found.retain(|&(store, _)| store == 1);
        assert_eq!(found, expected, "{function} of {module}");
    }
}

/// The string grows until it includes what was behind it.
#[test]
fn a_string_that_grows_is_another_string() {
    let mut s = new();
    s.put(2, 10, Y, b"key\0");
    s.persist(2, Y);
    s.public(Y + 8);
    let look = |s: &mut Script| {
        s.add(3, 2, What::Load { addr: Y, size: 32 });
        s.act(3);
    };
    look(&mut s);
    look(&mut s);
    s.put(2, 11, Y + 3, b"boards ");
    s.persist(2, Y);
    s.store(2, 1, Y + 8);
    look(&mut s);
    s.persist(2, Y);
    let code = |site: SiteId| Code {
        functions: vec!["strcmp".to_owned(); usize::from(site.0 == 2)],
        module: "libc.so.6".into(),
    };
    let found = races(&s.engine.finish_with(&mut |site| code(site)));
    assert!(found.contains(&(1, 2)), "{found:?}");
}
