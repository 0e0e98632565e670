//! Which bytes of registers and memory depend on the value, and how one instruction changes that.

use std::collections::HashMap;

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register, UsedMemory,
};

use super::{Effect, Registers, TracedInstruction, classes};

/// One bit for each byte, the lowest first: of a register, or of an access to memory.
pub type Mask = u64;

/// The mask of the lowest `count` bytes.
pub(super) fn bytes(count: usize) -> Mask {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// What depends on the value.
///
/// # A value that is copied
///
/// ```
/// use pmvet_engines::confirm::taint::{Registers, Taint, TracedInstruction};
///
/// let mut registers = Registers::default();
/// (registers.general[7], registers.general[6]) = (0x1000, 0x2000); // rdi, rsi
/// let mut taint = Taint::default();
/// taint.source(0x1000, 8);
/// let mut step = |code: &[u8]| taint.step(&TracedInstruction { pc: 0x400, code, registers: &registers });
/// assert_eq!(step(&[0x48, 0x8b, 0x07]), [], "mov rax, [rdi] writes no memory");
/// let effects = step(&[0x48, 0x89, 0x06]); // mov [rsi], rax
/// assert_eq!((effects[0].addr, effects[0].len), (0x2000, 8));
/// assert!(effects[0].content && !effects[0].address);
/// ```
#[derive(Default)]
pub struct Taint {
    general: [Mask; 16],
    vector: [Mask; 32],
    mask_registers: [Mask; 8],
    flags: bool,
    branched: bool,
    /// A mask for each word of 8 bytes; none is 0.
    memory: HashMap<u64, u8>,
    info: Option<InstructionInfoFactory>,
    /// Instructions that could not be decoded.
    unknown: u64,
}

impl std::fmt::Debug for Taint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taint")
            .field("general", &self.general)
            .field("words", &self.memory.len())
            .finish_non_exhaustive()
    }
}

impl Taint {
    /// These bytes of memory are the value.
    pub fn source(&mut self, addr: u64, len: u64) {
        self.set_memory(addr, len as usize, u64::MAX);
    }

    /// Exactly these bytes of a register are the value.
    pub fn source_register(&mut self, register: Register, mask: Mask) {
        self.set_register(register, mask, false);
    }

    /// The bytes of a register that depend on it.
    pub fn register(&self, register: Register) -> Mask {
        let (whole, first) = place(register);
        let all = match whole {
            RegisterPlace::General(i) => self.general[i],
            RegisterPlace::Vector(i) => self.vector[i],
            RegisterPlace::Opmask(i) => self.mask_registers[i],
            RegisterPlace::Other => 0,
        };
        all >> first & bytes(register.size())
    }

    /// Whether any of the flags depends on it.
    pub fn flags(&self) -> bool {
        self.flags
    }

    /// A branch depended on the value: what follows may depend on it without data flow.
    pub fn branched(&self) -> bool {
        self.branched
    }

    /// How many instructions could not be decoded, and count as doing nothing.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Nothing depends on the value any more.
    pub fn is_clean(&self) -> bool {
        !self.flags
            && self.memory.is_empty()
            && self.general.iter().chain(&self.vector).chain(&self.mask_registers).all(|&mask| mask == 0)
    }

    /// The bytes of memory that depend on it, up to 64 of them.
    pub fn memory(&self, addr: u64, len: usize) -> Mask {
        (0..len.min(64)).fold(0, |mask, i| {
            let at = addr.wrapping_add(i as u64);
            let word = self.memory.get(&(at / 8)).copied().unwrap_or(0);
            mask | u64::from(word >> (at % 8) & 1) << i
        })
    }

    pub(super) fn set_memory(&mut self, addr: u64, len: usize, mask: Mask) {
        for i in 0..len {
            let at = addr.wrapping_add(i as u64);
            let bit = 1 << (at % 8);
            // Beyond 64 bytes, all bytes share the last bit.
            if mask >> i.min(63) & 1 == 1 {
                *self.memory.entry(at / 8).or_insert(0) |= bit;
            } else if let Some(word) = self.memory.get_mut(&(at / 8)) {
                *word &= !bit;
                if *word == 0 {
                    self.memory.remove(&(at / 8));
                }
            }
        }
    }

    /// Writes a register as the processor does: 32-bit writes clear the upper half, vector instructions with the new
    /// encoding everything above.
    pub(super) fn set_register(&mut self, register: Register, mask: Mask, clears_above: bool) {
        let (whole, first) = place(register);
        let size = register.size();
        let slot = match whole {
            RegisterPlace::General(i) => &mut self.general[i],
            RegisterPlace::Vector(i) => &mut self.vector[i],
            RegisterPlace::Opmask(i) => &mut self.mask_registers[i],
            RegisterPlace::Other => return,
        };
        let part = bytes(size) << first;
        let rest = if clears_above || register.is_gpr32() || register.is_k() { 0 } else { *slot & !part };
        *slot = rest | mask << first & part;
    }

    pub(super) fn set_flags(&mut self, tainted: bool) {
        self.flags = tainted;
    }

    /// Applies an instruction. Returns its writes that depend on the value.
    pub fn step(&mut self, step: &TracedInstruction<'_>) -> Vec<Effect> {
        let mut decoder = Decoder::with_ip(64, step.code, step.pc, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            self.unknown += 1;
            return Vec::new();
        }
        if matches!(instruction.code(), Code::Syscall) {
            return self.system_call(step.registers);
        }
        if instruction.is_jcc_short_or_near() {
            self.branched |= self.flags;
            return Vec::new();
        }
        let mut effects = Vec::new();
        if !classes::exact(self, &instruction, step.registers, &mut effects) {
            self.overestimate(&instruction, step.registers, &mut effects);
        }
        effects
    }

    /// Whether a memory operand's address depends on the value.
    pub(super) fn address(&self, instruction: &Instruction) -> bool {
        let parts = [instruction.memory_base(), instruction.memory_index()];
        parts.into_iter().any(|part| part != Register::None && !part.is_ip() && self.register(part) != 0)
    }

    /// Reads an operand. A load through a dependent address depends on the value, too.
    pub(super) fn operand(&self, instruction: &Instruction, index: u32, registers: &Registers) -> Mask {
        match instruction.op_kind(index) {
            OpKind::Register => self.register(instruction.op_register(index)),
            OpKind::Memory => {
                let len = instruction.memory_size().size();
                if self.address(instruction) {
                    return bytes(len);
                }
                instruction
                    .virtual_address(index, 0, |register, _, _| value(register, registers))
                    .map_or(0, |addr| self.memory(addr, len))
            }
            _ => 0,
        }
    }

    /// Writes an operand.
    pub(super) fn set_operand(
        &mut self,
        instruction: &Instruction,
        index: u32,
        mask: Mask,
        registers: &Registers,
        effects: &mut Vec<Effect>,
    ) {
        match instruction.op_kind(index) {
            OpKind::Register => {
                self.set_register(instruction.op_register(index), mask, classes::clears_above(instruction))
            }
            OpKind::Memory => {
                let len = instruction.memory_size().size();
                let addr = instruction.virtual_address(index, 0, |register, _, _| value(register, registers));
                if let Some(addr) = addr {
                    self.write(addr, len, mask, self.address(instruction), effects);
                }
            }
            _ => {}
        }
    }

    /// Writes memory, and notes it if it depends on the value.
    pub(super) fn write(&mut self, addr: u64, len: usize, mask: Mask, address: bool, effects: &mut Vec<Effect>) {
        let content = mask & bytes(len) != 0;
        self.set_memory(addr, len, mask & bytes(len));
        if content || address {
            effects.push(Effect { addr, len: len as u64, content, address, output: false });
        }
    }

    /// All that it writes depends on all that it reads.
    fn overestimate(&mut self, instruction: &Instruction, registers: &Registers, effects: &mut Vec<Effect>) {
        let mut factory = self.info.take().unwrap_or_else(InstructionInfoFactory::new);
        let info = factory.info(instruction);
        let reads = |access: OpAccess| {
            matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        let writes = |access: OpAccess| {
            matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        let at = |memory: &UsedMemory| memory.virtual_address(0, |register, _, _| value(register, registers));
        let stack = instruction.is_stack_instruction();
        let is_pointer = |register: Register| stack && register.full_register() == Register::RSP;
        let mut tainted = instruction.rflags_read() != 0 && self.flags;
        for used in info.used_registers() {
            tainted |= reads(used.access()) && !is_pointer(used.register()) && self.register(used.register()) != 0;
        }
        for memory in info.used_memory().iter().filter(|memory| reads(memory.access())) {
            tainted |= at(memory).is_some_and(|addr| self.memory(addr, memory.memory_size().size()) != 0);
        }
        let mask = if tainted { u64::MAX } else { 0 };
        let address = self.address(instruction);
        for used in info.used_registers().iter().filter(|used| writes(used.access()) && !is_pointer(used.register())) {
            // A write of 32 bits is listed as one of the whole register, whose upper half is zero then.
            let named = instruction.op0_register();
            let half = named.is_gpr32() && named.full_register() == used.register();
            let register = if half { named } else { used.register() };
            let kept = if used.access() == OpAccess::CondWrite { self.register(register) } else { 0 };
            self.set_register(register, mask | kept, classes::clears_above(instruction));
        }
        for memory in info.used_memory().iter().filter(|memory| writes(memory.access())) {
            if let Some(addr) = at(memory) {
                self.write(addr, memory.memory_size().size().max(1), mask, address, effects);
            }
        }
        if instruction.rflags_modified() != 0 {
            self.flags = tainted;
        }
        self.info = Some(factory);
    }

    /// Handles a system call: output that depends on the value, and a result that does not.
    fn system_call(&mut self, registers: &Registers) -> Vec<Effect> {
        const RAX: usize = 0;
        let [number, _, len, _, _, _, buffer, ..] = registers.general;
        // write, pwrite64, sendto: a buffer and its length.
        let sends = matches!(number, 1 | 18 | 44);
        self.general[RAX] = 0;
        // The processor overwrites rcx and r11.
        (self.general[1], self.general[11]) = (0, 0);
        let tainted = |from: u64| {
            let word = self.memory.get(&(from / 8)).copied().unwrap_or(0);
            (from..from + 8 - from % 8).any(|at| at < buffer.saturating_add(len) && word >> (at % 8) & 1 == 1)
        };
        let words = (buffer / 8..=buffer.saturating_add(len) / 8).map(|word| (word * 8).max(buffer));
        let content = sends && len > 0 && len < 1 << 24 && words.into_iter().any(tainted);
        let effect = Effect { addr: buffer, len, content, address: false, output: true };
        content.then_some(effect).into_iter().collect()
    }
}

/// Where a register's bytes are kept.
enum RegisterPlace {
    General(usize),
    Vector(usize),
    Opmask(usize),
    Other,
}

/// The place of the whole register, and the first byte of the part that has this name.
fn place(register: Register) -> (RegisterPlace, usize) {
    if register.is_gpr() {
        let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
        return (RegisterPlace::General(register.full_register().number()), usize::from(high));
    }
    if register.is_vector_register() {
        return (RegisterPlace::Vector(register.number()), 0);
    }
    if register.is_k() {
        return (RegisterPlace::Opmask(register.number()), 0);
    }
    (RegisterPlace::Other, 0)
}

/// The value of a register that an address is made of.
pub(super) fn value(register: Register, registers: &Registers) -> Option<u64> {
    match register {
        Register::FS => Some(registers.fs),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        Register::GS => None,
        _ if register.is_gpr64() => Some(registers.general[register.number()]),
        _ if register.is_gpr32() => Some(registers.general[register.full_register().number()] & 0xffff_ffff),
        _ => None,
    }
}
