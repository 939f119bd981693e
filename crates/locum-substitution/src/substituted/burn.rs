//! `Substituted<M>` as a transparent Burn module: parameter paths are the model's own.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Device;

use super::Substituted;

impl<M> Substituted<M> {
    fn map_model(self, map: impl FnOnce(M) -> M) -> Self {
        Self {
            model: map(self.model),
            ..self
        }
    }
}

impl<M: Module> Module for Substituted<M> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.model.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.map_model(|model| model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.map_model(|model| model.to_device(device))
    }

    fn train(self) -> Self {
        self.map_model(M::train)
    }

    fn valid(&self) -> Self {
        Self {
            model: self.model.valid(),
            spec: self.spec.clone(),
            ledger: self.ledger.clone(),
        }
    }

    fn materialize(self) -> Self {
        self.map_model(M::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.model.visit(visitor);
    }

    fn map<P: ModuleMapper>(self, mapper: &mut P) -> Self {
        self.map_model(|model| model.map(mapper))
    }
}

impl<M: ModuleDisplayDefault> ModuleDisplayDefault for Substituted<M> {
    fn content(&self, content: Content) -> Option<Content> {
        self.model.content(content)
    }

    fn num_params(&self) -> usize {
        self.model.num_params()
    }
}

impl<M: ModuleDisplay> ModuleDisplay for Substituted<M> {}
