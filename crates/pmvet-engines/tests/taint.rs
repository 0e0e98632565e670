//! Data flow, instruction class by instruction class: what depends on the value afterwards, and what must not.

#![allow(clippy::unwrap_used, reason = "a test")]

use iced_x86::code_asm::*;
use iced_x86::{IcedError, Register as R};
use pmvet_engines::confirm::taint::{Effect, Registers, Taint, TracedInstruction};

/// Addresses of memory that depends on the value, and of memory that does not; both are in registers.
const VALUE: u64 = 0x9000;
const OTHER: u64 = 0xa000;
const STACK: u64 = 0xb000;

struct World {
    taint: Taint,
    registers: Registers,
    effects: Vec<Effect>,
}

impl World {
    /// 8 bytes of memory at `r15` are the value; `r14` points at other memory.
    fn new() -> Self {
        let mut registers = Registers::default();
        registers.general[4] = STACK;
        registers.general[14] = OTHER;
        registers.general[15] = VALUE;
        let mut taint = Taint::default();
        taint.source(VALUE, 8);
        Self { taint, registers, effects: Vec::new() }
    }

    fn run(&mut self, code: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
        let mut assembler = CodeAssembler::new(64).unwrap();
        code(&mut assembler).unwrap();
        let bytes = assembler.assemble(0x1000).unwrap();
        let mut at = 0;
        while at < bytes.len() {
            let mut decoder = iced_x86::Decoder::with_ip(64, &bytes[at..], 0x1000 + at as u64, 0);
            let len = decoder.decode().len();
            let step = TracedInstruction { pc: 0x1000 + at as u64, code: &bytes[at..], registers: &self.registers };
            self.effects.extend(self.taint.step(&step));
            at += len;
        }
    }
}

/// Registers that are the value before, code, registers after.
type Case = (&'static str, &'static [(R, u64)], fn(&mut CodeAssembler) -> Result<(), IcedError>, &'static [(R, u64)]);

const ALL: u64 = 0xff;

fn check(cases: &[Case]) {
    for (name, before, code, after) in cases {
        let mut world = World::new();
        for &(register, mask) in *before {
            world.taint.source_register(register, mask);
        }
        world.run(code);
        for &(register, mask) in *after {
            assert_eq!(world.taint.register(register), mask, "{name}: {register:?}");
        }
    }
}

#[test]
fn moves_of_every_width() {
    check(&[
        ("mov r64, r64", &[(R::RAX, ALL)], |a| a.mov(rbx, rax), &[(R::RBX, ALL), (R::RAX, ALL)]),
        ("mov r32 clears the upper half", &[(R::RAX, ALL), (R::RBX, ALL)], |a| a.mov(ebx, eax), &[(R::RBX, 0xf)]),
        ("mov r16 keeps the rest", &[(R::RAX, ALL), (R::RBX, 0xf0)], |a| a.mov(bx, ax), &[(R::RBX, 0xf3)]),
        ("mov r8 keeps the rest", &[(R::RAX, ALL)], |a| a.mov(bl, al), &[(R::RBX, 1)]),
        ("mov high byte", &[(R::RAX, 2)], |a| a.mov(bl, ah), &[(R::RBX, 1)]),
        ("mov into high byte", &[(R::RAX, 1)], |a| a.mov(bh, al), &[(R::RBX, 2)]),
        ("mov of another register", &[(R::RAX, ALL)], |a| a.mov(rbx, rcx), &[(R::RBX, 0)]),
        ("mov overwrites", &[(R::RBX, ALL)], |a| a.mov(rbx, rcx), &[(R::RBX, 0)]),
        ("mov of a constant", &[(R::RBX, ALL)], |a| a.mov(rbx, 5u64), &[(R::RBX, 0)]),
        ("load of 8 bytes", &[], |a| a.mov(rbx, qword_ptr(r15)), &[(R::RBX, ALL)]),
        ("load of 4 bytes", &[(R::RBX, ALL)], |a| a.mov(ebx, dword_ptr(r15)), &[(R::RBX, 0xf)]),
        ("load of 1 byte", &[], |a| a.mov(bl, byte_ptr(r15)), &[(R::RBX, 1)]),
        ("load that overlaps", &[], |a| a.mov(rbx, qword_ptr(r15 + 6)), &[(R::RBX, 3)]),
        ("load of other memory", &[(R::RBX, ALL)], |a| a.mov(rbx, qword_ptr(r14)), &[(R::RBX, 0)]),
        ("movzx of a byte", &[(R::RAX, 3)], |a| a.movzx(ebx, al), &[(R::RBX, 1)]),
        ("movzx of memory", &[(R::RBX, ALL)], |a| a.movzx(rbx, word_ptr(r15)), &[(R::RBX, 3)]),
        ("movsx spreads the sign", &[(R::RAX, 1)], |a| a.movsx(rbx, al), &[(R::RBX, ALL)]),
        ("movsx of a clean sign", &[(R::RAX, 1)], |a| a.movsx(rbx, ax), &[(R::RBX, 1)]),
        ("movsxd", &[(R::RAX, 8)], |a| a.movsxd(rbx, eax), &[(R::RBX, 0xf8)]),
        ("movbe", &[(R::RBX, 0)], |a| a.movbe(ebx, dword_ptr(r15 + 6)), &[(R::RBX, 0xc)]),
        ("bswap", &[(R::RAX, 1)], |a| a.bswap(rax), &[(R::RAX, 0x80)]),
        ("xchg", &[(R::RAX, ALL)], |a| a.xchg(rax, rbx), &[(R::RAX, 0), (R::RBX, ALL)]),
        ("cmovcc keeps both", &[(R::RAX, 1), (R::RBX, 2)], |a| a.cmove(rbx, rax), &[(R::RBX, 3)]),
        ("cdqe", &[(R::RAX, 8)], |a| a.cdqe(), &[(R::RAX, 0xf8)]),
        ("cqo of a clean sign", &[(R::RAX, 1), (R::RDX, ALL)], |a| a.cqo(), &[(R::RDX, 0)]),
        ("cdq", &[(R::RAX, 8)], |a| a.cdq(), &[(R::RDX, 0xf)]),
    ]);
}

#[test]
fn arithmetic() {
    check(&[
        ("add carries upwards", &[(R::RAX, 4)], |a| a.add(rbx, rax), &[(R::RBX, 0xfc)]),
        ("add of clean registers", &[(R::RAX, 4)], |a| a.add(rbx, rcx), &[(R::RBX, 0)]),
        ("sub", &[(R::RBX, 0x80)], |a| a.sub(rbx, rcx), &[(R::RBX, 0x80)]),
        ("sub of itself is 0", &[(R::RBX, ALL)], |a| a.sub(rbx, rbx), &[(R::RBX, 0)]),
        ("inc", &[(R::RBX, 2)], |a| a.inc(rbx), &[(R::RBX, 0xfe)]),
        ("neg of 4 bytes", &[(R::RBX, 0xf2)], |a| a.neg(ebx), &[(R::RBX, 0xe)]),
        (
            "adc takes the carry",
            &[(R::RAX, ALL)],
            |a| {
                a.add(rax, 1)?;
                a.adc(rbx, 0)
            },
            &[(R::RBX, ALL)],
        ),
        (
            "adc with a clean carry",
            &[(R::RAX, ALL)],
            |a| {
                a.add(rcx, 1)?;
                a.adc(rbx, 0)
            },
            &[(R::RBX, 0)],
        ),
        (
            "sbb of itself is the carry",
            &[(R::RBX, ALL)],
            |a| {
                a.cmp(rcx, rdx)?;
                a.sbb(rbx, rbx)
            },
            &[(R::RBX, 0)],
        ),
        ("imul of two", &[(R::RAX, 2)], |a| a.imul_2(rbx, rax), &[(R::RBX, 0xfe)]),
        ("imul with a constant", &[(R::RAX, 1)], |a| a.imul_3(rbx, rax, 24), &[(R::RBX, ALL)]),
        ("mul writes rdx, too", &[(R::RAX, 1)], |a| a.mul(rcx), &[(R::RDX, ALL), (R::RAX, ALL)]),
        ("mul of clean registers", &[(R::RDX, ALL)], |a| a.mul(rcx), &[(R::RDX, 0)]),
        ("div", &[(R::RDX, 1)], |a| a.div(rcx), &[(R::RAX, ALL), (R::RDX, ALL)]),
        ("popcnt", &[(R::RAX, 0x80)], |a| a.popcnt(rbx, rax), &[(R::RBX, ALL)]),
        ("lea adds", &[(R::RAX, 2)], |a| a.lea(rbx, qword_ptr(rcx + rax * 8)), &[(R::RBX, 0xfe)]),
        ("lea does not load", &[], |a| a.lea(rbx, qword_ptr(r15)), &[(R::RBX, 0)]),
    ]);
}

#[test]
fn bits_and_shifts() {
    check(&[
        ("xor of itself is 0", &[(R::RBX, ALL)], |a| a.xor(ebx, ebx), &[(R::RBX, 0)]),
        ("xor", &[(R::RAX, 3), (R::RBX, 4)], |a| a.xor(rbx, rax), &[(R::RBX, 7)]),
        ("and with a constant clears bytes", &[(R::RBX, ALL)], |a| a.and(ebx, 0xff00), &[(R::RBX, 2)]),
        ("and with a mask of all", &[(R::RBX, ALL)], |a| a.and(rbx, -1), &[(R::RBX, ALL)]),
        ("or with ones sets bytes", &[(R::RBX, 0xf)], |a| a.or(ebx, 0xff), &[(R::RBX, 0xe)]),
        ("not", &[(R::RBX, 0x3)], |a| a.not(rbx), &[(R::RBX, 3)]),
        ("shl by bytes", &[(R::RBX, 1)], |a| a.shl(rbx, 16), &[(R::RBX, 4)]),
        ("shl by bits", &[(R::RBX, 1)], |a| a.shl(rbx, 4), &[(R::RBX, 3)]),
        ("shr by bytes", &[(R::RBX, 0x81)], |a| a.shr(rbx, 32), &[(R::RBX, 8)]),
        ("shr moves the rest out", &[(R::RBX, 0xf)], |a| a.shr(rbx, 32), &[(R::RBX, 0)]),
        ("sar spreads the sign", &[(R::RBX, 0x80)], |a| a.sar(rbx, 32), &[(R::RBX, 0xf8)]),
        ("rol", &[(R::RBX, 0x80)], |a| a.rol(rbx, 8), &[(R::RBX, 1)]),
        ("ror", &[(R::RBX, 1)], |a| a.ror(rbx, 8), &[(R::RBX, 0x80)]),
        ("shift by a count that is the value", &[(R::RCX, 1)], |a| a.shl(rbx, cl), &[(R::RBX, ALL)]),
        (
            "setcc of the value",
            &[(R::RAX, 1)],
            |a| {
                a.cmp(rax, 3)?;
                a.sete(bl)
            },
            &[(R::RBX, 1)],
        ),
        (
            "setcc of something else",
            &[(R::RAX, 1), (R::RBX, 1)],
            |a| {
                a.cmp(rcx, 3)?;
                a.sete(bl)
            },
            &[(R::RBX, 0)],
        ),
        (
            "cmp of itself is no secret",
            &[(R::RAX, 1)],
            |a| {
                a.cmp(rax, rax)?;
                a.sete(bl)
            },
            &[(R::RBX, 0)],
        ),
        (
            "test",
            &[(R::RAX, 1)],
            |a| {
                a.test(rax, rax)?;
                a.setne(bl)
            },
            &[(R::RBX, 1)],
        ),
        (
            "a later comparison replaces flags",
            &[(R::RAX, 1)],
            |a| {
                a.cmp(rax, 1)?;
                a.cmp(rcx, 1)?;
                a.sete(bl)
            },
            &[(R::RBX, 0)],
        ),
    ]);
}

#[test]
fn vectors() {
    check(&[
        ("movdqu load", &[], |a| a.movdqu(xmm1, xmmword_ptr(r15)), &[(R::XMM1, 0xff)]),
        ("movdqa of registers", &[(R::XMM0, 0xff00)], |a| a.movdqa(xmm1, xmm0), &[(R::XMM1, 0xff00)]),
        ("movq from a register", &[(R::RAX, ALL), (R::XMM1, 0xff00)], |a| a.movq(xmm1, rax), &[(R::XMM1, 0xff)]),
        ("movd to a register", &[(R::XMM0, 0xf0)], |a| a.movd(ebx, xmm0), &[(R::RBX, 0)]),
        ("movaps keeps above", &[(R::YMM1, 0xffff_0000)], |a| a.movaps(xmm1, xmm0), &[(R::YMM1, 0xffff_0000)]),
        ("vmovaps clears above", &[(R::YMM1, 0xffff_0000)], |a| a.vmovaps(xmm1, xmm0), &[(R::YMM1, 0)]),
        ("vmovdqu of 32 bytes", &[], |a| a.vmovdqu(ymm1, ymmword_ptr(r15)), &[(R::YMM1, 0xff)]),
        ("pxor of itself is 0", &[(R::XMM1, 0xff)], |a| a.pxor(xmm1, xmm1), &[(R::XMM1, 0)]),
        (
            "vpxor of another with itself is 0",
            &[(R::XMM1, 0xff), (R::XMM2, 1)],
            |a| a.vpxor(xmm1, xmm2, xmm2),
            &[(R::XMM1, 0)],
        ),
        ("pcmpeqd of itself is ones", &[(R::XMM1, 0xff)], |a| a.pcmpeqd(xmm1, xmm1), &[(R::XMM1, 0)]),
        ("pand", &[(R::XMM0, 1)], |a| a.pand(xmm1, xmm0), &[(R::XMM1, 1)]),
        ("paddd carries within a lane", &[(R::XMM0, 0x20)], |a| a.paddd(xmm1, xmm0), &[(R::XMM1, 0xe0)]),
        ("paddb does not carry", &[(R::XMM0, 0x20)], |a| a.paddb(xmm1, xmm0), &[(R::XMM1, 0x20)]),
        ("pshufd", &[(R::XMM0, 0xf)], |a| a.pshufd(xmm1, xmm0, 0b00_11_11_11), &[(R::XMM1, 0xf000)]),
        ("punpcklqdq", &[(R::XMM0, 0xff)], |a| a.punpcklqdq(xmm1, xmm0), &[(R::XMM1, 0xff00)]),
        ("punpcklbw", &[(R::XMM0, 0x1)], |a| a.punpcklbw(xmm1, xmm0), &[(R::XMM1, 0x2)]),
        ("psrldq", &[(R::XMM1, 0xff00)], |a| a.psrldq(xmm1, 8), &[(R::XMM1, 0xff)]),
        ("pslldq", &[(R::XMM1, 0xff)], |a| a.pslldq(xmm1, 12), &[(R::XMM1, 0xf000)]),
        ("pmovmskb", &[(R::XMM0, 1)], |a| a.pmovmskb(ebx, xmm0), &[(R::RBX, 0xf)]),
        ("unknown vector arithmetic is overestimated", &[(R::XMM0, 1)], |a| a.pmulld(xmm1, xmm0), &[(R::XMM1, 0xffff)]),
        ("and clean without the value", &[(R::XMM1, 1)], |a| a.pshufb(xmm2, xmm3), &[(R::XMM2, 0)]),
    ]);
}

fn content(effect: &Effect) -> (u64, u64, bool, bool) {
    (effect.addr, effect.len, effect.content, effect.address)
}

#[test]
fn stores() {
    let mut world = World::new();
    world.run(|a| {
        a.mov(rax, qword_ptr(r15))?;
        a.mov(qword_ptr(r14), rax)
    });
    assert_eq!(world.effects.iter().map(content).collect::<Vec<_>>(), [(OTHER, 8, true, false)]);
    assert_eq!(world.taint.memory(OTHER, 8), ALL);
    // Overwritten with something else.
    world.run(|a| a.mov(dword_ptr(r14), 0));
    assert_eq!(world.taint.memory(OTHER, 8), 0xf0);
    assert_eq!(world.effects.len(), 1);
}

#[test]
fn stores_of_other_widths_and_kinds() {
    for (code, want) in [
        (
            (|a| {
                a.mov(rax, qword_ptr(r15))?;
                a.mov(byte_ptr(r14), al)
            }) as fn(&mut CodeAssembler) -> _,
            (OTHER, 1, true, false),
        ),
        (
            |a| {
                a.mov(rax, qword_ptr(r15))?;
                a.movnti(qword_ptr(r14), rax)
            },
            (OTHER, 8, true, false),
        ),
        (
            |a| {
                a.movdqu(xmm1, xmmword_ptr(r15))?;
                a.movntdq(xmmword_ptr(r14), xmm1)
            },
            (OTHER, 16, true, false),
        ),
        (
            |a| {
                a.mov(rax, qword_ptr(r15))?;
                a.lock().add(qword_ptr(r14), rax)
            },
            (OTHER, 8, true, false),
        ),
        (
            |a| {
                a.mov(rcx, qword_ptr(r15))?;
                a.lock().cmpxchg(qword_ptr(r14), rcx)
            },
            (OTHER, 8, true, false),
        ),
        (
            |a| {
                a.mov(rcx, qword_ptr(r15))?;
                a.xchg(qword_ptr(r14), rcx)
            },
            (OTHER, 8, true, false),
        ),
        (
            |a| {
                a.mov(rcx, qword_ptr(r15))?;
                a.lock().xadd(qword_ptr(r14), rcx)
            },
            (OTHER, 8, true, false),
        ),
        (
            |a| {
                a.cmp(dword_ptr(r15), 1)?;
                a.sete(byte_ptr(r14))
            },
            (OTHER, 1, true, false),
        ),
        (
            |a| {
                a.mov(rbx, qword_ptr(r15))?;
                a.mov(dword_ptr(r14 + rbx * 4), 7)
            },
            (OTHER, 4, false, true),
        ),
    ] {
        let mut world = World::new();
        world.run(code);
        assert_eq!(world.effects.iter().map(content).collect::<Vec<_>>(), [want]);
    }
}

#[test]
fn stores_without_the_value_are_no_effects() {
    for code in [
        (|a| a.mov(qword_ptr(r14), rax)) as fn(&mut CodeAssembler) -> _,
        |a| {
            a.mov(rax, qword_ptr(r15))?;
            a.xor(eax, eax)?;
            a.mov(qword_ptr(r14), rax)
        },
        |a| {
            a.mov(eax, dword_ptr(r15))?;
            a.shr(rax, 32)?;
            a.mov(qword_ptr(r14), rax)
        },
        |a| {
            a.mov(rax, qword_ptr(r15))?;
            a.mov(al, 3)?;
            a.mov(byte_ptr(r14), al)
        },
        |a| {
            a.mov(rax, qword_ptr(r15))?;
            a.clwb(byte_ptr(r15))?;
            a.sfence()
        },
        |a| {
            a.cmp(dword_ptr(r15), 1)?;
            a.mov(dword_ptr(r14), 1)
        },
    ] {
        let mut world = World::new();
        world.run(code);
        assert_eq!(world.effects, []);
    }
}

#[test]
fn spills_and_calls() {
    let mut world = World::new();
    world.run(|a| {
        a.mov(rax, qword_ptr(r15))?;
        a.push(rax)
    });
    assert_eq!(world.taint.memory(STACK - 8, 8), ALL);
    world.registers.general[4] = STACK - 8;
    world.run(|a| a.pop(rbx));
    assert_eq!(world.taint.register(R::RBX), ALL);
    // A call writes a return address over what was there.
    world.registers.general[4] = STACK;
    let mut code = CodeAssembler::new(64).unwrap();
    code.call(0x2000).unwrap();
    let bytes = code.assemble(0x1000).unwrap();
    world.taint.step(&TracedInstruction { pc: 0x1000, code: &bytes, registers: &world.registers });
    assert_eq!(world.taint.memory(STACK - 8, 8), 0);
}

#[test]
fn what_comes_through_a_pointer_depends_on_it() {
    let mut world = World::new();
    world.run(|a| {
        a.mov(rax, qword_ptr(r15))?;
        a.mov(rbx, qword_ptr(rax))
    });
    assert_eq!(world.taint.register(R::RBX), ALL);
}

#[test]
fn string_operations() {
    let mut world = World::new();
    world.registers.general[1] = 3;
    world.registers.general[6] = VALUE + 6;
    world.registers.general[7] = OTHER;
    world.run(|a| a.rep().movsb());
    assert_eq!(world.taint.memory(OTHER, 8), 0b11);
    assert_eq!(world.effects.iter().map(content).collect::<Vec<_>>(), [(OTHER, 3, true, false)]);
    world.run(|a| a.rep().stosb());
    assert_eq!(world.taint.memory(OTHER, 8), 0);
    world.registers.general[6] = VALUE;
    world.run(|a| a.lodsq());
    assert_eq!(world.taint.register(R::RAX), ALL);
    world.run(|a| a.stosd());
    assert_eq!(world.taint.memory(OTHER, 8), 0xf);
    // A clean copy brings nothing.
    world.registers.general[6] = STACK;
    world.effects.clear();
    world.run(|a| a.movsq());
    assert_eq!((world.taint.memory(OTHER, 8), world.effects.len()), (0, 0));
}

#[test]
fn branches_and_output() {
    let mut world = World::new();
    world.run(|a| {
        let mut over = a.create_label();
        a.cmp(rcx, 1)?;
        a.je(over)?;
        a.set_label(&mut over)?;
        a.nop()
    });
    assert!(!world.taint.branched());
    world.run(|a| {
        let mut over = a.create_label();
        a.cmp(dword_ptr(r15), 1)?;
        a.je(over)?;
        a.set_label(&mut over)?;
        a.nop()
    });
    assert!(world.taint.branched());
    for (number, buffer, len, want) in
        [(1, VALUE + 7, 4, true), (1, VALUE + 8, 4, false), (0, VALUE, 4, false), (44, VALUE - 3, 4, true)]
    {
        world.effects.clear();
        world.registers.general[0] = number;
        world.registers.general[6] = buffer;
        world.registers.general[2] = len;
        world.run(|a| a.syscall());
        assert_eq!(world.effects.iter().any(|e| e.output), want, "{number} {buffer:#x}");
    }
}

#[test]
fn bytes_that_are_no_instruction_are_counted() {
    let mut taint = Taint::default();
    taint.source(VALUE, 8);
    let registers = Registers::default();
    for code in [&[][..], &[0x06], &[0x0f, 0xff]] {
        assert_eq!(taint.step(&TracedInstruction { pc: 0, code, registers: &registers }), []);
    }
    assert!(taint.unknown() >= 2);
    assert!(!taint.is_clean());
}
