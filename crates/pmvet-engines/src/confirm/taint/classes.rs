//! Instructions whose data flow is followed byte by byte.

use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind, Register};

use super::state::{Mask, bytes};
use super::{Effect, Registers, Taint};

/// Whether an instruction clears the register above what it writes, as vector instructions with the new encodings do.
pub(super) fn clears_above(instruction: &Instruction) -> bool {
    !matches!(instruction.encoding(), EncodingKind::Legacy) && !instruction.op0_register().is_gpr()
}

/// Propagates taint exactly. False if the instruction is of no known class.
pub(super) fn exact(taint: &mut Taint, i: &Instruction, registers: &Registers, effects: &mut Vec<Effect>) -> bool {
    use Mnemonic::*;
    let size = |index: u32| operand_size(i, index);
    let read = |taint: &Taint, index: u32| taint.operand(i, index, registers);
    match i.mnemonic() {
        // Moves.
        Mov | Movnti | Movups | Movaps | Movdqa | Movdqu | Movupd | Movapd | Movntdq | Movntps | Movntpd | Movd
        | Movq | Vmovups | Vmovaps | Vmovdqa | Vmovdqu | Vmovupd | Vmovapd | Vmovntdq | Vmovntps | Vmovntpd | Vmovd
        | Vmovq | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 | Vmovdqa32 | Vmovdqa64 | Lddqu | Vlddqu
            if i.op_count() == 2 =>
        {
            let mask = read(taint, 1) & bytes(size(1));
            taint.set_operand(i, 0, mask, registers, effects);
            // Into a vector register, what is above the source becomes zero.
            if i.op0_kind() == OpKind::Register && i.op0_register().is_vector_register() {
                let above = clears_above(i);
                taint.set_register(i.op0_register(), mask, above);
            }
        }
        Movzx => {
            let mask = read(taint, 1) & bytes(size(1));
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Movsx | Movsxd => {
            let mask = extended(read(taint, 1), size(1), size(0));
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Movbe => {
            let mask = reversed(read(taint, 1), size(0));
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Bswap => {
            let mask = reversed(read(taint, 0), size(0));
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Cbw => spread(taint, Register::AL, Register::AX),
        Cwde => spread(taint, Register::AX, Register::EAX),
        Cdqe => spread(taint, Register::EAX, Register::RAX),
        Cdq => signs(taint, Register::EAX, Register::EDX),
        Cqo => signs(taint, Register::RAX, Register::RDX),
        Xchg => {
            let (a, b) = (read(taint, 0), read(taint, 1));
            taint.set_operand(i, 1, a, registers, effects);
            taint.set_operand(i, 0, b, registers, effects);
        }
        Lea => {
            let parts = [i.memory_base(), i.memory_index()].into_iter().filter(|r| *r != Register::None && !r.is_ip());
            let mask = parts.fold(0, |mask, part| mask | upward(taint.register(part), 8));
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Push => {
            let len = i.stack_pointer_increment().unsigned_abs() as usize;
            let mask = read(taint, 0);
            taint.write(registers.general[4].wrapping_sub(len as u64), len, mask, false, effects);
        }
        Pop => {
            let len = i.stack_pointer_increment().unsigned_abs() as usize;
            let mask = taint.memory(registers.general[4], len);
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Call => {
            taint.write(registers.general[4].wrapping_sub(8), 8, 0, false, effects);
        }
        Ret | Jmp | Nop | Endbr64 | Clwb | Clflush | Clflushopt | Sfence | Mfence | Lfence | Pause | Prefetcht0
        | Prefetchnta | Prefetchw | Vzeroupper => {}
        // Tests write flags only.
        Cmp | Test | Bt | Comiss | Comisd | Ucomiss | Ucomisd | Ptest | Vptest => {
            let same = i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register;
            let same = same && i.op0_register() == i.op1_register() && i.mnemonic() == Cmp;
            let tainted = !same && (read(taint, 0) | read(taint, 1)) != 0;
            taint.set_flags(tainted);
        }
        // Bit by bit.
        Xor | Sub | Pxor | Xorps | Xorpd | Psubb | Psubd | Psubq | Pcmpeqb | Pcmpeqd if same(i, 0, 1) => {
            taint.set_operand(i, 0, 0, registers, effects);
            if matches!(i.mnemonic(), Xor | Sub) {
                taint.set_flags(false);
            }
        }
        Vpxor | Vpxord | Vpxorq | Vxorps | Vxorpd | Vpsubb | Vpsubd | Vpcmpeqb | Vpcmpeqd
            if i.op_count() == 3 && same(i, 1, 2) && i.op0_register().is_vector_register() =>
        {
            taint.set_operand(i, 0, 0, registers, effects);
        }
        And | Or | Xor => {
            let (a, b) = (read(taint, 0), read(taint, 1));
            let fixed = constant(i, 1).map_or(0, |value| {
                // A byte that the constant clears or sets depends on nothing.
                let decided = if i.mnemonic() == And { 0 } else { 0xff };
                let is_fixed = |at: usize| i.mnemonic() != Xor && (value >> (8 * at)) as u8 == decided;
                (0..8).filter(|&at| is_fixed(at)).fold(0, |mask: Mask, at| mask | 1 << at)
            });
            let mask = (a | b) & !fixed;
            taint.set_operand(i, 0, mask, registers, effects);
            taint.set_flags(mask != 0);
        }
        Not => {
            let mask = read(taint, 0);
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Pand | Por | Pxor | Pandn | Andps | Andpd | Orps | Orpd | Xorps | Xorpd | Paddb | Psubb => {
            let mask = read(taint, 0) | read(taint, 1);
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Vpand | Vpor | Vpxor | Vpandn | Vandps | Vandpd | Vorps | Vorpd | Vxorps | Vxorpd | Vpaddb | Vpsubb
            if i.op_count() == 3 =>
        {
            let mask = read(taint, 1) | read(taint, 2);
            taint.set_operand(i, 0, mask, registers, effects);
        }
        // Carries go upwards.
        Add | Sub | Adc | Sbb => {
            let only_flags = i.mnemonic() == Sbb && same(i, 0, 1);
            let data = if only_flags { 0 } else { upward(read(taint, 0) | read(taint, 1), size(0)) };
            let carried = matches!(i.mnemonic(), Adc | Sbb) && taint.flags();
            let mask = data | if carried { bytes(size(0)) } else { 0 };
            taint.set_operand(i, 0, mask, registers, effects);
            taint.set_flags(mask != 0);
        }
        Inc | Dec | Neg => {
            let mask = upward(read(taint, 0), size(0));
            taint.set_operand(i, 0, mask, registers, effects);
            taint.set_flags(mask != 0);
        }
        Imul if i.op_count() >= 2 => {
            let last = if i.op_count() == 2 { [0, 1] } else { [1, 1] };
            let mask = upward(read(taint, last[0]) | read(taint, last[1]), size(0));
            taint.set_operand(i, 0, mask, registers, effects);
            taint.set_flags(mask != 0);
        }
        Paddw | Psubw => lanes(taint, i, 2, registers, effects),
        Paddd | Psubd => lanes(taint, i, 4, registers, effects),
        Paddq | Psubq => lanes(taint, i, 8, registers, effects),
        // Shifts.
        Shl | Shr | Sar | Rol | Ror if shift_count(taint, i, registers).is_some() => {
            let count = shift_count(taint, i, registers).unwrap_or(0);
            let mask = shifted(i.mnemonic(), read(taint, 0), size(0), count);
            taint.set_operand(i, 0, mask, registers, effects);
            if count != 0 {
                taint.set_flags(mask != 0);
            }
        }
        Pslldq | Psrldq => {
            let count = (i.immediate8() as usize).min(16);
            let mask = read(taint, 0);
            let mask = if i.mnemonic() == Pslldq { mask << count } else { mask >> count };
            taint.set_operand(i, 0, mask & bytes(16), registers, effects);
        }
        Pshufd => {
            let from = read(taint, 1);
            let mask = (0..4).fold(0, |mask, lane| {
                let source = i.immediate8() >> (2 * lane) & 3;
                mask | (from >> (4 * source) & 0xf) << (4 * lane)
            });
            taint.set_operand(i, 0, mask, registers, effects);
        }
        Punpcklbw => interleave(taint, i, 1, 0, registers, effects),
        Punpcklwd => interleave(taint, i, 2, 0, registers, effects),
        Punpckldq | Unpcklps => interleave(taint, i, 4, 0, registers, effects),
        Punpcklqdq | Unpcklpd | Movlhps => interleave(taint, i, 8, 0, registers, effects),
        Punpckhqdq | Unpckhpd => interleave(taint, i, 8, 8, registers, effects),
        // Conditions.
        _ if i.condition_code() != iced_x86::ConditionCode::None && i.op_count() == 2 => {
            let mask = read(taint, 0) | read(taint, 1) | if taint.flags() { bytes(size(0)) } else { 0 };
            taint.set_operand(i, 0, mask, registers, effects);
        }
        _ if i.condition_code() != iced_x86::ConditionCode::None && i.op_count() == 1 && size(0) == 1 => {
            let mask = if taint.flags() { 1 } else { 0 };
            taint.set_operand(i, 0, mask, registers, effects);
        }
        // Atomic read-modify-writes.
        Xadd => {
            let (old, added) = (read(taint, 0), read(taint, 1));
            let sum = upward(old | added, size(0));
            taint.set_operand(i, 1, old, registers, effects);
            taint.set_operand(i, 0, sum, registers, effects);
            taint.set_flags(sum != 0);
        }
        Cmpxchg => {
            let accumulator =
                [Register::AL, Register::AX, Register::EAX, Register::RAX][size(0).trailing_zeros() as usize & 3];
            let (old, new, expected) = (read(taint, 0), read(taint, 1), taint.register(accumulator));
            taint.set_flags((old | expected) != 0);
            // It may have stored or not: both are possible.
            taint.set_operand(i, 0, old | new, registers, effects);
            taint.set_register(accumulator, old | expected, false);
        }
        Movsb | Movsw | Movsd | Movsq | Stosb | Stosw | Stosd | Stosq | Lodsb | Lodsw | Lodsd | Lodsq
            if i.is_string_instruction() =>
        {
            string(taint, i, registers, effects);
        }
        _ => return false,
    }
    true
}

fn operand_size(i: &Instruction, index: u32) -> usize {
    match i.op_kind(index) {
        OpKind::Register => i.op_register(index).size(),
        OpKind::Memory => i.memory_size().size(),
        _ => 8,
    }
}

fn same(i: &Instruction, a: u32, b: u32) -> bool {
    let register = |index| i.op_kind(index) == OpKind::Register;
    register(a) && register(b) && i.op_register(a) == i.op_register(b)
}

/// A constant operand, sign-extended as the processor does.
fn constant(i: &Instruction, index: u32) -> Option<u64> {
    let register = matches!(i.op_kind(index), OpKind::Register | OpKind::Memory);
    (!register).then(|| i.try_immediate(index).ok()).flatten()
}

/// All bytes from the lowest one that depends on the value.
fn upward(mask: Mask, size: usize) -> Mask {
    match mask & bytes(size) {
        0 => 0,
        mask => bytes(size) & !((1 << mask.trailing_zeros()) - 1),
    }
}

/// The mask after sign extension of a source of `from` bytes.
fn extended(mask: Mask, from: usize, to: usize) -> Mask {
    let sign = mask >> (from - 1) & 1 == 1;
    mask & bytes(from) | if sign { bytes(to) & !bytes(from) } else { 0 }
}

fn reversed(mask: Mask, size: usize) -> Mask {
    (0..size).fold(0, |all, at| all | (mask >> at & 1) << (size - 1 - at))
}

fn spread(taint: &mut Taint, from: Register, to: Register) {
    let mask = extended(taint.register(from), from.size(), to.size());
    taint.set_register(to, mask, false);
}

fn signs(taint: &mut Taint, from: Register, to: Register) {
    let sign = taint.register(from) >> (from.size() - 1) & 1;
    taint.set_register(to, if sign == 1 { bytes(to.size()) } else { 0 }, false);
}

/// The number of bits, if it does not depend on the value.
fn shift_count(taint: &Taint, i: &Instruction, registers: &Registers) -> Option<u32> {
    let wide = operand_size(i, 0) == 8;
    let count = match i.op1_kind() {
        OpKind::Register if taint.register(Register::CL) == 0 => registers.general[1] as u32,
        OpKind::Register | OpKind::Memory => return None,
        _ => constant(i, 1)? as u32,
    };
    Some(count & if wide { 63 } else { 31 })
}

fn shifted(how: Mnemonic, mask: Mask, size: usize, bits: u32) -> Mask {
    let all = bytes(size);
    let mask = mask & all;
    let (whole, part) = (bits as usize / 8, !bits.is_multiple_of(8));
    let size = size as u32;
    let rotate = |mask: Mask, by: u32| match by % size {
        0 => mask,
        by => (mask << by | mask >> (size - by)) & all,
    };
    let whole = whole as u32;
    match how {
        Mnemonic::Shl => {
            let moved = mask.checked_shl(whole).unwrap_or(0);
            (moved | if part { moved << 1 } else { 0 }) & all
        }
        Mnemonic::Shr => {
            let moved = mask.checked_shr(whole).unwrap_or(0);
            moved | if part { moved >> 1 } else { 0 }
        }
        Mnemonic::Sar => {
            let sign = mask >> (size - 1) & 1 == 1;
            let moved = mask.checked_shr(whole).unwrap_or(0);
            let from_sign = if sign { all & !bytes(size.saturating_sub(whole + 1) as usize) } else { 0 };
            (moved | if part { moved >> 1 } else { 0 }) | if bits > 0 { from_sign } else { 0 }
        }
        Mnemonic::Rol => rotate(mask, whole) | if part { rotate(mask, whole + 1) } else { 0 },
        _ => {
            let back = |by: u32| rotate(mask, size - by % size);
            back(whole) | if part { back(whole + 1) } else { 0 }
        }
    }
}

/// A vector addition: carries stay within a lane.
fn lanes(taint: &mut Taint, i: &Instruction, width: usize, registers: &Registers, effects: &mut Vec<Effect>) {
    let both = taint.operand(i, 0, registers) | taint.operand(i, 1, registers);
    let size = operand_size(i, 0);
    let mask = (0..size).step_by(width).fold(0, |mask, at| mask | upward(both >> at, width) << at);
    taint.set_operand(i, 0, mask, registers, effects);
}

/// Elements of both operands in turn, from the byte `first` on.
fn interleave(
    taint: &mut Taint,
    i: &Instruction,
    width: usize,
    first: usize,
    registers: &Registers,
    effects: &mut Vec<Effect>,
) {
    let (a, b) = (taint.operand(i, 0, registers), taint.operand(i, 1, registers));
    let element = bytes(width);
    let mask = (0..8 / width).fold(0, |mask, n| {
        let at = first + n * width;
        mask | (a >> at & element) << (2 * n * width) | (b >> at & element) << ((2 * n + 1) * width)
    });
    taint.set_operand(i, 0, mask, registers, effects);
}

/// How many repetitions of a string instruction are followed one by one.
const MOST_REPEATED: u64 = 1 << 16;

fn string(taint: &mut Taint, i: &Instruction, registers: &Registers, effects: &mut Vec<Effect>) {
    use Mnemonic::*;
    let (rcx, rsi, rdi) = (registers.general[1], registers.general[6], registers.general[7]);
    let repeated = i.has_rep_prefix() || i.has_repne_prefix();
    let count = if repeated { rcx.min(MOST_REPEATED) } else { 1 };
    let width: u8 = match i.mnemonic() {
        Movsb | Stosb | Lodsb => 1,
        Movsw | Stosw | Lodsw => 2,
        Movsd | Stosd | Lodsd => 4,
        _ => 8,
    };
    let accumulator = [Register::AL, Register::AX, Register::EAX, Register::RAX][width.ilog2() as usize];
    let from_value = taint.register(Register::RSI) != 0;
    let to_value = taint.register(Register::RDI) != 0 || repeated && taint.register(Register::RCX) != 0;
    let (mut content, len) = (false, count * u64::from(width));
    for n in 0..count {
        let at = n * u64::from(width);
        let source = || match from_value {
            true => bytes(width as usize),
            false => taint.memory(rsi.wrapping_add(at), width as usize),
        };
        let mask = match i.mnemonic() {
            Stosb | Stosw | Stosd | Stosq => taint.register(accumulator),
            _ => source(),
        };
        if matches!(i.mnemonic(), Lodsb | Lodsw | Lodsd | Lodsq) {
            taint.set_register(accumulator, mask, false);
        } else {
            content |= mask != 0;
            taint.set_memory(rdi.wrapping_add(at), width as usize, mask);
        }
    }
    let stores = !matches!(i.mnemonic(), Lodsb | Lodsw | Lodsd | Lodsq);
    if stores && len > 0 && (content || to_value) {
        effects.push(Effect { addr: rdi, len, content, address: to_value, output: false });
    }
}
