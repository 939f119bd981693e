//! What generated code names. Not an interface for people: it may change in any release.

#[cfg(feature = "burn")]
pub use burn;
pub use core;

pub use crate::{
    LoadWeights, Loaded, ModulePath, MoeLayerVisitor, MoeLayers, PipelineStage,
    ProcessWeightsAfterLoading, Stage, Substituted, SubstitutionError, SubstitutionSpec,
    TensorInfo, WeightStream,
};

pub use crate::__impl_module as impl_module;

/// Implements Burn's module traits for a generated wrapper with a field `core: Substituted<_>`.
///
/// The bounds are written `for<'a>` so that they may fail: a model that is no Burn module keeps a
/// wrapper that is none either.
#[cfg(feature = "burn")]
#[doc(hidden)]
#[macro_export]
macro_rules! __impl_module {
    (impl [$($generics:tt)*] for [$wrapper:ty] of [$model:ty] where [$($bounds:tt)*]) => {
        impl<$($generics)*> $crate::__private::burn::module::Module for $wrapper
        where
            for<'__locum> $model: $crate::__private::burn::module::Module,
            $($bounds)*
        {
            fn collect_devices(
                &self,
                devices: $crate::__private::burn::module::Devices,
            ) -> $crate::__private::burn::module::Devices {
                $crate::__private::burn::module::Module::collect_devices(&self.core, devices)
            }
            fn fork(self, device: &$crate::__private::burn::tensor::Device) -> Self {
                Self { core: $crate::__private::burn::module::Module::fork(self.core, device) }
            }
            fn to_device(self, device: &$crate::__private::burn::tensor::Device) -> Self {
                Self { core: $crate::__private::burn::module::Module::to_device(self.core, device) }
            }
            fn train(self) -> Self {
                Self { core: $crate::__private::burn::module::Module::train(self.core) }
            }
            fn valid(&self) -> Self {
                Self { core: $crate::__private::burn::module::Module::valid(&self.core) }
            }
            fn materialize(self) -> Self {
                Self { core: $crate::__private::burn::module::Module::materialize(self.core) }
            }
            fn visit<Visitor: $crate::__private::burn::module::ModuleVisitor>(
                &self,
                visitor: &mut Visitor,
            ) {
                $crate::__private::burn::module::Module::visit(&self.core, visitor);
            }
            fn map<Mapper: $crate::__private::burn::module::ModuleMapper>(
                self,
                mapper: &mut Mapper,
            ) -> Self {
                Self { core: $crate::__private::burn::module::Module::map(self.core, mapper) }
            }
        }

        impl<$($generics)*> $crate::__private::burn::module::ModuleDisplayDefault for $wrapper
        where
            for<'__locum> $model: $crate::__private::burn::module::ModuleDisplayDefault,
            $($bounds)*
        {
            fn content(
                &self,
                content: $crate::__private::burn::module::Content,
            ) -> $crate::__private::core::option::Option<$crate::__private::burn::module::Content> {
                $crate::__private::burn::module::ModuleDisplayDefault::content(&self.core, content)
            }
            fn num_params(&self) -> usize {
                $crate::__private::burn::module::ModuleDisplayDefault::num_params(&self.core)
            }
        }

        impl<$($generics)*> $crate::__private::burn::module::ModuleDisplay for $wrapper
        where
            for<'__locum> $model: $crate::__private::burn::module::ModuleDisplay,
            $($bounds)*
        {
        }
    };
}

/// Without Burn there are no module traits to implement.
#[cfg(not(feature = "burn"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __impl_module {
    ($($tokens:tt)*) => {};
}
