//! The watch over limits: what software drivers let pass.

use std::sync::Arc;

use onebuf_core::backend::{Launch, Part, Work};
use onebuf_core::{BindingKind, KernelInterface, Limits};

use crate::control::Control;

/// Limits, and where to note what is past them.
pub(crate) struct Watch {
    pub(crate) limits: Limits,
    pub(crate) control: Arc<Control>,
}

impl Watch {
    pub(crate) fn most(&self, what: &str, asked: u64, most: u64) {
        if asked > most {
            self.control.violation(format!("{what}: {asked}, the limit is {most}"));
        }
    }

    pub(crate) fn multiple(&self, what: &str, value: u64, of: u64) {
        if of > 1 && !value.is_multiple_of(of) {
            self.control.violation(format!("{what}: {value} is no multiple of {of}"));
        }
    }

    /// A kernel that the device was asked to run.
    pub(crate) fn kernel(&self, interface: &KernelInterface) {
        let limits = &self.limits;
        for axis in 0..3 {
            let (size, most) = (interface.workgroup_size[axis], limits.max_workgroup_size[axis]);
            self.most("workgroup size", u64::from(size), u64::from(most));
        }
        self.most("invocations", interface.invocations(), u64::from(limits.max_workgroup_invocations));
        self.most("workgroup memory", interface.workgroup_bytes, limits.max_workgroup_bytes);
        let immediate = u64::from(interface.immediate_bytes);
        self.most("immediate data", immediate, u64::from(limits.max_immediate_bytes));
        let count = |kind| interface.bindings.iter().filter(|b| b.kind == kind).count() as u64;
        self.most("storage bindings", count(BindingKind::Storage), u64::from(limits.max_storage_bindings));
        self.most("uniform bindings", count(BindingKind::Uniform), u64::from(limits.max_uniform_bindings));
    }

    pub(crate) fn work(&self, work: &Work<'_>) {
        match work {
            Work::Launch(launch) => self.launch(launch),
            Work::Copy { from, to } => {
                self.part("copy from", from);
                self.part("copy to", to);
                if from.size_bytes != to.size_bytes {
                    self.control.violation(format!("copy of {} bytes to {}", from.size_bytes, to.size_bytes));
                }
                if Arc::ptr_eq(from.memory, to.memory)
                    && from.offset_bytes < to.offset_bytes + to.size_bytes
                    && to.offset_bytes < from.offset_bytes + from.size_bytes
                {
                    self.control.violation("copy of overlapping parts".into());
                }
            }
            Work::Fill { to, .. } => {
                self.part("fill", to);
                self.multiple("fill offset", to.offset_bytes, 4);
                self.multiple("fill size", to.size_bytes, 4);
            }
        }
    }

    fn launch(&self, launch: &Launch<'_>) {
        let interface = launch.kernel.interface();
        self.kernel(interface);
        if launch.groups.contains(&0) {
            self.control.violation(format!("an empty grid, {:?}", launch.groups));
        }
        if launch.bindings.len() != interface.bindings.len() {
            let (given, wanted) = (launch.bindings.len(), interface.bindings.len());
            self.control.violation(format!("{given} bindings for {wanted}"));
        }
        if launch.immediates.len() != interface.immediate_bytes as usize {
            self.control.violation(format!("{} bytes of immediate data", launch.immediates.len()));
        }
        for (part, binding) in launch.bindings.iter().zip(&interface.bindings) {
            self.part(&binding.name, part);
            let limits = &self.limits;
            let (alignment, most) = match binding.kind {
                BindingKind::Storage => {
                    (limits.storage_offset_alignment_bytes, limits.max_storage_binding_bytes)
                }
                BindingKind::Uniform => {
                    (limits.uniform_offset_alignment_bytes, limits.max_uniform_binding_bytes)
                }
            };
            self.multiple("binding offset", part.offset_bytes, alignment);
            self.most("binding size", part.size_bytes, most);
            if part.size_bytes < binding.min_bytes {
                self.control.violation(format!("{} bytes for `{}`", part.size_bytes, binding.ty));
            }
        }
    }

    fn part(&self, what: &str, part: &Part<'_>) {
        let size = part.memory.size_bytes();
        let end = part.offset_bytes.checked_add(part.size_bytes);
        if part.size_bytes == 0 || end.is_none_or(|end| end > size) {
            let (offset, bytes) = (part.offset_bytes, part.size_bytes);
            self.control.violation(format!("{what}: {bytes} bytes from {offset} of {size}"));
        }
    }
}
