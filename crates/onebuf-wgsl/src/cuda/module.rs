//! The module around the functions: constants, memory, parameters and the kernel itself.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use naga::{
    AddressSpace, Binding, BuiltIn, Constant, Expression, Function, GlobalVariable, Handle, TypeInner,
    proc::NameKey, valid::FunctionInfo,
};
use onebuf_core::kernel::{KernelInterface, Slot};

use super::{
    CudaOptions, CudaParam, Fault,
    function::{FunctionWriter, Which},
    names::Names,
    types::Types,
    uniformity,
};
use crate::{Specialized, error::Location};

/// The most workgroup memory that a kernel can declare; beyond it the host must ask for it at launch.
const STATIC_SHARED_BYTES: u64 = 48 << 10;

pub(super) struct ModuleWriter<'a> {
    pub(super) ir: &'a naga::Module,
    pub(super) options: &'a CudaOptions,
    pub(super) names: &'a Names,
    pub(super) types: Types<'a>,
    /// Constants that stand in memory, because they are indexed.
    pub(super) tables: HashSet<Handle<Constant>>,
    /// Text of composed values so far.
    pub(super) composed_bytes: Cell<usize>,
    specialized: &'a Specialized,
    /// The name of the parameter with the length of a runtime-sized array.
    lengths: HashMap<Handle<GlobalVariable>, String>,
    pub(super) dynamic_shared: bool,
}

/// What is printed, without the prelude.
pub(super) struct Printed {
    pub(super) body: String,
    pub(super) kernel_name: String,
    pub(super) params: Vec<CudaParam>,
}

impl<'a> ModuleWriter<'a> {
    pub(super) fn new(
        specialized: &'a Specialized,
        options: &'a CudaOptions,
        names: &'a Names,
    ) -> Result<ModuleWriter<'a>, Fault> {
        let ir = &specialized.ir;
        let types = Types::new(ir, names)?;
        let mut lengths = HashMap::new();
        for (handle, variable) in ir.global_variables.iter() {
            if ir.types[variable.ty].inner.is_dynamically_sized(&ir.types) {
                let name = names.get(NameKey::GlobalVariable(handle));
                lengths.insert(handle, names.fresh(&format!("{name}_length")));
            }
        }
        let is_table = |constant: &Constant| {
            matches!(ir.types[constant.ty].inner, TypeInner::Array { .. })
                && types.is_constant_initializer(constant.ty)
        };
        let tables = ir
            .constants
            .iter()
            .filter(|(_, constant)| is_table(constant))
            .map(|(handle, _)| handle)
            .collect();
        let dynamic_shared = specialized.interface.workgroup_bytes > STATIC_SHARED_BYTES;
        Ok(ModuleWriter {
            ir,
            options,
            names,
            types,
            tables,
            composed_bytes: Cell::new(0),
            specialized,
            lengths,
            dynamic_shared,
        })
    }

    pub(super) fn interface(&self) -> &'a KernelInterface {
        &self.specialized.interface
    }

    fn global_name(&self, variable: Handle<GlobalVariable>) -> &str {
        self.names.get(NameKey::GlobalVariable(variable))
    }

    pub(super) fn function_name(&self, function: Handle<Function>) -> &str {
        self.names.get(NameKey::Function(function))
    }

    pub(super) fn length_name(&self, variable: Handle<GlobalVariable>) -> Result<String, Fault> {
        self.lengths.get(&variable).cloned().ok_or_else(|| Fault("the length of a sized array".to_owned()))
    }

    /// How a variable of the module is written where it is used.
    pub(super) fn global_place(&self, variable: Handle<GlobalVariable>) -> String {
        let name = self.global_name(variable);
        match self.ir.global_variables[variable].space {
            AddressSpace::WorkGroup if self.dynamic_shared => format!("wg_workgroup().{name}"),
            AddressSpace::Private => format!("wg_private.{name}"),
            AddressSpace::Storage { .. } | AddressSpace::Uniform => format!("(*{name})"),
            _ => name.to_owned(),
        }
    }

    /// The index of the thread in its workgroup.
    fn thread(&self) -> String {
        let [x, y, z] = self.interface().workgroup_size;
        let mut text = if x > 1 || (y == 1 && z == 1) { "threadIdx.x".to_owned() } else { String::new() };
        let mut term = |factor: u32, axis: &str| {
            if !text.is_empty() {
                text.push_str(" + ");
            }
            _ = if factor == 1 {
                write!(text, "threadIdx.{axis}")
            } else {
                write!(text, "{factor}u * threadIdx.{axis}")
            };
        };
        if y > 1 {
            term(x, "y");
        }
        if z > 1 {
            term(x.saturating_mul(y), "z");
        }
        text
    }

    /// The threads of a whole subgroup.
    pub(super) fn full_mask(&self) -> String {
        match self.interface().invocations() {
            threads if threads % 32 == 0 => "0xffffffffu".to_owned(),
            threads => format!("wg_mask_of({}, {threads}u)", self.thread()),
        }
    }

    /// The variables of the module that `info`'s function and those it calls use.
    fn used(
        &self,
        info: &'a FunctionInfo,
    ) -> impl Iterator<Item = (Handle<GlobalVariable>, &'a GlobalVariable)> {
        self.ir.global_variables.iter().filter(|(handle, _)| !info[*handle].is_empty())
    }

    fn uses_private(&self, info: &'a FunctionInfo) -> bool {
        self.used(info).any(|(_, variable)| variable.space == AddressSpace::Private)
    }

    /// What a call of `function` passes beside its arguments.
    pub(super) fn hidden_arguments(&self, function: Handle<Function>) -> Result<Vec<String>, Fault> {
        let info = &self.specialized.info[function];
        let mut arguments = Vec::new();
        for (handle, variable) in self.used(info) {
            match variable.space {
                AddressSpace::Storage { .. } | AddressSpace::Uniform | AddressSpace::Immediate => {
                    arguments.push(self.global_name(handle).to_owned());
                    arguments.extend(self.lengths.get(&handle).cloned());
                }
                _ => {}
            }
        }
        if self.uses_private(info) {
            arguments.push("wg_private".to_owned());
        }
        Ok(arguments)
    }

    fn hidden_parameters(&self, info: &'a FunctionInfo) -> Result<Vec<String>, Fault> {
        let mut parameters = Vec::new();
        for (handle, variable) in self.used(info) {
            let name = self.global_name(handle);
            match variable.space {
                AddressSpace::Storage { .. } | AddressSpace::Uniform => {
                    parameters.push(format!("{} *{name}", self.buffer_type(handle, variable)?));
                    parameters.extend(self.lengths.get(&handle).map(|length| format!("u32 {length}")));
                }
                AddressSpace::Immediate => {
                    parameters.push(format!("const {} &{name}", self.types.name(variable.ty)?))
                }
                _ => {}
            }
        }
        if self.uses_private(info) {
            parameters.push("wg_Private &wg_private".to_owned());
        }
        Ok(parameters)
    }

    /// The type behind a buffer's pointer: `const` where the kernel only reads it.
    fn buffer_type(
        &self,
        handle: Handle<GlobalVariable>,
        variable: &GlobalVariable,
    ) -> Result<String, Fault> {
        let entry = self.specialized.info.get_entry_point(0);
        let writes = entry[handle].contains(naga::valid::GlobalUse::WRITE);
        Ok(format!("{}{}", if writes { "" } else { "const " }, self.types.name(variable.ty)?))
    }

    pub(super) fn write(&self) -> Result<Printed, Fault> {
        let mut body = String::from("namespace kernel {\n\n");
        self.types.write_structs(&mut body)?;
        self.write_tables(&mut body)?;
        let entry = self.ir.entry_points.first().ok_or_else(|| Fault("no entry point".to_owned()))?;
        let entry_info = self.specialized.info.get_entry_point(0);
        self.write_workgroup_memory(entry_info, &mut body)?;
        self.write_private_memory(entry_info, &mut body)?;
        let (functions, entry_uniformity) = uniformity::analyze(self.ir);
        for ((handle, function), uniformity) in self.ir.functions.iter().zip(functions) {
            self.write_function(handle, function, uniformity.shared_operations, &mut body)?;
        }
        let kernel_name = format!("kernel_{}", self.names.get(NameKey::EntryPoint(0)).trim_end_matches('_'));
        let params = self.write_kernel(entry, &kernel_name, entry_uniformity.shared_operations, &mut body)?;
        body.push_str("\n} // namespace kernel\n");
        Ok(Printed { body, kernel_name, params })
    }

    fn write_tables(&self, out: &mut String) -> Result<(), Fault> {
        for (handle, constant) in self.ir.constants.iter() {
            if self.tables.contains(&handle) {
                let (ty, name) = (self.types.name(constant.ty)?, self.names.get(NameKey::Constant(handle)));
                let value = self.constant_expression(constant.init)?;
                _ = writeln!(out, "static __device__ const {ty} {name} = {value};\n");
            }
        }
        Ok(())
    }

    fn write_workgroup_memory(&self, info: &'a FunctionInfo, out: &mut String) -> Result<(), Fault> {
        let variables: Vec<_> =
            self.used(info).filter(|(_, variable)| variable.space == AddressSpace::WorkGroup).collect();
        if variables.is_empty() {
            return Ok(());
        }
        if self.dynamic_shared {
            out.push_str("struct wg_Workgroup {\n");
            for (handle, variable) in &variables {
                _ = writeln!(
                    out,
                    "    alignas(16) {} {};",
                    self.types.name(variable.ty)?,
                    self.global_name(*handle)
                );
            }
            out.push_str(
                "};\nextern __shared__ vec4<u32> wg_dynamic[];\n\
                 WG wg_Workgroup &wg_workgroup() { return *reinterpret_cast<wg_Workgroup *>(wg_dynamic); }\n\n",
            );
        } else {
            for (handle, variable) in &variables {
                let (ty, name) = (self.types.name(variable.ty)?, self.global_name(*handle));
                _ = writeln!(out, "alignas(16) static __shared__ {ty} {name};");
            }
            out.push('\n');
        }
        Ok(())
    }

    fn write_private_memory(&self, info: &'a FunctionInfo, out: &mut String) -> Result<(), Fault> {
        if self.uses_private(info) {
            out.push_str("struct wg_Private {\n");
            for (handle, variable) in
                self.used(info).filter(|(_, variable)| variable.space == AddressSpace::Private)
            {
                _ = writeln!(out, "    {} {};", self.types.name(variable.ty)?, self.global_name(handle));
            }
            out.push_str("};\n\n");
        }
        Ok(())
    }

    fn write_function(
        &self,
        handle: Handle<Function>,
        function: &'a Function,
        shared_operations: HashSet<Handle<Expression>>,
        out: &mut String,
    ) -> Result<(), Fault> {
        let info = &self.specialized.info[handle];
        let mut parameters = Vec::new();
        for (index, argument) in function.arguments.iter().enumerate() {
            let name = self.names.get(NameKey::FunctionArgument(handle, index as u32));
            parameters.push(match self.ir.types[argument.ty].inner {
                TypeInner::Pointer { base, .. } => format!("{} &{name}", self.types.name(base)?),
                _ => format!("{} {name}", self.types.name(argument.ty)?),
            });
        }
        parameters.extend(self.hidden_parameters(info)?);
        let result = match &function.result {
            Some(result) => self.types.name(result.ty)?,
            None => "void".to_owned(),
        };
        if let Some(place) = Location::of(self.ir.functions.get_span(handle), &self.specialized.source) {
            _ = writeln!(out, "// Line {}.", place.line);
        }
        _ = writeln!(out, "WG {result} {}({}) {{", self.function_name(handle), parameters.join(", "));
        let mut writer =
            FunctionWriter::new(self, function, info, Which::Function(handle), shared_operations);
        writer.locals()?;
        writer.block(&function.body)?;
        out.push_str(&writer.out);
        out.push_str("}\n\n");
        Ok(())
    }

    fn write_kernel(
        &self,
        entry: &'a naga::EntryPoint,
        kernel_name: &str,
        shared_operations: HashSet<Handle<Expression>>,
        out: &mut String,
    ) -> Result<Vec<CudaParam>, Fault> {
        let info = self.specialized.info.get_entry_point(0);
        let (texts, params) = self.kernel_parameters(info)?;
        let threads = self.interface().invocations();
        if let Some(line) = line_of_function(&self.specialized.source, &entry.name) {
            _ = writeln!(out, "// Line {line}: entry point `{}`.", entry.name);
        }
        let separator = if texts.is_empty() { "" } else { "\n    " };
        _ = writeln!(
            out,
            "extern \"C\" __global__ void __launch_bounds__({threads}) {kernel_name}({separator}{}) {{",
            texts.join(",\n    ")
        );
        let mut writer = FunctionWriter::new(self, &entry.function, info, Which::Entry, shared_operations);
        self.prologue(&entry.function, info, &mut writer)?;
        writer.locals()?;
        writer.block(&entry.function.body)?;
        out.push_str(&writer.out);
        out.push_str("}\n");
        Ok(params)
    }

    fn kernel_parameters(&self, info: &'a FunctionInfo) -> Result<(Vec<String>, Vec<CudaParam>), Fault> {
        let (mut texts, mut params) = (Vec::new(), Vec::new());
        for (index, binding) in self.interface().bindings.iter().enumerate() {
            let at_slot = |variable: &GlobalVariable| {
                let slot =
                    variable.binding.map(|binding| Slot { group: binding.group, binding: binding.binding });
                slot == Some(binding.slot)
            };
            let (handle, variable) = self
                .used(info)
                .find(|(_, variable)| at_slot(variable))
                .ok_or_else(|| Fault(format!("no variable at {}", binding.slot)))?;
            texts.push(format!(
                "{} *__restrict__ {}",
                self.buffer_type(handle, variable)?,
                self.global_name(handle)
            ));
            params.push(CudaParam::Buffer { binding: index });
            if let Some(length) = self.lengths.get(&handle) {
                texts.push(format!("u32 {length}"));
                params.push(CudaParam::Length { binding: index });
            }
        }
        if let Some((handle, variable)) =
            self.used(info).find(|(_, variable)| variable.space == AddressSpace::Immediate)
        {
            texts.push(format!(
                "const __grid_constant__ {} {}",
                self.types.name(variable.ty)?,
                self.global_name(handle)
            ));
            params.push(CudaParam::Immediates { size_bytes: self.types.size_bytes(variable.ty) });
        }
        if self.options.wide_grid {
            texts.push("const vec3<u32> wg_base".to_owned());
            texts.push("const vec3<u32> wg_groups".to_owned());
            params.extend([CudaParam::GridBase, CudaParam::GridGroups]);
        }
        Ok((texts, params))
    }

    /// Memory that starts as zero, and the values of the built-ins.
    fn prologue(
        &self,
        function: &'a Function,
        info: &'a FunctionInfo,
        writer: &mut FunctionWriter<'a, '_>,
    ) -> Result<(), Fault> {
        let mut zeroed = false;
        for (handle, _) in self.used(info).filter(|(_, variable)| variable.space == AddressSpace::WorkGroup) {
            let place = self.global_place(handle);
            writer.line(&format!(
                "wg_zero({place}, {}, {}u);",
                self.thread(),
                self.interface().invocations()
            ));
            zeroed = true;
        }
        if zeroed {
            writer.line("__syncthreads();");
        }
        if self.uses_private(info) {
            let mut values = Vec::new();
            for (_, variable) in
                self.used(info).filter(|(_, variable)| variable.space == AddressSpace::Private)
            {
                values.push(match variable.init {
                    Some(init) => self.constant_expression(init)?,
                    None => format!("{}{{}}", self.types.name(variable.ty)?),
                });
            }
            writer.line(&format!("wg_Private wg_private{{{}}};", values.join(", ")));
        }
        for (index, argument) in function.arguments.iter().enumerate() {
            let name = self.names.get(NameKey::EntryPointArgument(0, index as u32));
            let ty = self.types.name(argument.ty)?;
            let value = match (&argument.binding, &self.ir.types[argument.ty].inner) {
                (Some(binding), _) => self.built_in(binding)?,
                (None, TypeInner::Struct { members, .. }) => {
                    let mut values = Vec::new();
                    for member in members {
                        let binding = member
                            .binding
                            .as_ref()
                            .ok_or_else(|| Fault("an argument without a binding".to_owned()))?;
                        values.push(self.built_in(binding)?);
                    }
                    format!("{ty}({})", values.join(", "))
                }
                _ => return Err(Fault("an argument without a binding".to_owned())),
            };
            writer.line(&format!("{ty} {name} = {value};"));
        }
        Ok(())
    }

    fn built_in(&self, binding: &Binding) -> Result<String, Fault> {
        let Binding::BuiltIn(built_in) = *binding else {
            return Err(Fault("a kernel has no @location inputs".to_owned()));
        };
        let size = self.interface().workgroup_size;
        let vector = |component: &dyn Fn(usize, &str) -> String| {
            format!("vec3<u32>({}, {}, {})", component(0, "x"), component(1, "y"), component(2, "z"))
        };
        let group = |axis: &str| match self.options.wide_grid {
            true => format!("(blockIdx.{axis} + wg_base.{axis})"),
            false => format!("blockIdx.{axis}"),
        };
        Ok(match built_in {
            BuiltIn::GlobalInvocationId => vector(&|index, axis| match size[index] {
                1 => group(axis),
                size => format!("{} * {size}u + threadIdx.{axis}", group(axis)),
            }),
            BuiltIn::LocalInvocationId => vector(&|index, axis| match size[index] {
                1 => "0u".to_owned(),
                _ => format!("threadIdx.{axis}"),
            }),
            BuiltIn::LocalInvocationIndex => self.thread(),
            BuiltIn::WorkGroupId => vector(&|_, axis| group(axis)),
            BuiltIn::NumWorkGroups => vector(&|_, axis| match self.options.wide_grid {
                true => format!("wg_groups.{axis}"),
                false => format!("gridDim.{axis}"),
            }),
            BuiltIn::WorkGroupSize => vector(&|index, _| format!("{}u", size[index])),
            BuiltIn::SubgroupSize => "32u".to_owned(),
            BuiltIn::NumSubgroups => format!("{}u", self.interface().invocations().div_ceil(32)),
            BuiltIn::SubgroupId => format!("({}) >> 5u", self.thread()),
            BuiltIn::SubgroupInvocationId => format!("({}) & 31u", self.thread()),
            other => return Err(Fault(format!("no C++ for the built-in {other:?}"))),
        })
    }
}

impl FunctionWriter<'_, '_> {
    /// Local variables start with their initializer, or zero.
    fn locals(&mut self) -> Result<(), Fault> {
        let function = self.function;
        for (handle, variable) in function.local_variables.iter() {
            let ty = self.module.types.name(variable.ty)?;
            let name = self.local_name(handle).to_owned();
            match variable.init {
                Some(init) => {
                    let value = self.value(init)?;
                    self.line(&format!("{ty} {name} = {value};"));
                }
                None => self.line(&format!("{ty} {name}{{}};")),
            }
        }
        Ok(())
    }
}

/// The line on which `fn name` stands.
fn line_of_function(source: &str, name: &str) -> Option<usize> {
    let is_here = |line: &str| {
        line.match_indices("fn ").any(|(at, _)| {
            let rest = line[at + 3..].trim_start();
            rest.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('('))
        })
    };
    source.lines().position(is_here).map(|index| index + 1)
}
