//! Everything that can be wrong with a substituted checkpoint.

use std::error::Error as StdError;
use std::fmt;

use crate::tensor::Dtype;

/// An error of somebody else's code: a stream of tensors, or a model's own loader.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong; the message names layer, expert, tensor, and the expected and found values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubstitutionError {
    /// A field of `config.json` is not what it should be.
    #[error("`{field}`: {reason}")]
    Config {
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },

    /// Both formats declare substituted experts.
    #[error(
        "substituted experts are declared twice, in `approximate_experts` and in \
         `compression_config.transform_config.expert_substitution`: keep one"
    )]
    BothFormats,

    /// A list of substituted experts does not fit a layer.
    #[error("{reason}")]
    InvalidExperts {
        /// What is wrong with it.
        reason: String,
    },

    /// A declared layer does not fit the model.
    #[error("substituted experts {experts:?} are declared in layer {layer}, {reason}")]
    Layer {
        /// The declared layer.
        layer: u32,
        /// The declared experts.
        experts: Vec<u32>,
        /// Why they cannot be there.
        reason: String,
    },

    /// A tensor has more or fewer bytes than its shape asks for.
    #[error("tensor `{tensor}` has {found} bytes, which is not {dtype} {shape:?}")]
    ByteLength {
        /// The tensor.
        tensor: String,
        /// Its declared type.
        dtype: Dtype,
        /// Its declared shape.
        shape: Vec<usize>,
        /// Its bytes.
        found: usize,
    },

    /// The same tensor came twice.
    #[error("tensor `{tensor}` comes twice{}", alias(tensor, first))]
    DuplicateTensor {
        /// The second one's name.
        tensor: String,
        /// The first one's name.
        first: String,
    },

    /// Two tensors of different names bring the same part of an expert: a packed tensor beside one
    /// of a single expert, or two constants.
    #[error(
        "tensor `{tensor}` brings the {part} of expert {expert} of layer {layer}, which another \
         tensor brought already"
    )]
    ExpertTwice {
        /// The second tensor.
        tensor: String,
        /// The layer.
        layer: u32,
        /// The logical expert.
        expert: u32,
        /// `constant`, or a part such as `gate_proj.weight`.
        part: String,
    },

    /// A packed tensor that holds neither all experts of its layer nor the retained ones.
    #[error(
        "packed tensor `{tensor}` has shape {found:?}, expected {logical} experts or the \
         {retained} retained ones of layer {layer} in its first dimension"
    )]
    PackedExperts {
        /// The packed tensor.
        tensor: String,
        /// Its layer.
        layer: u32,
        /// The layer's number of logical experts.
        logical: usize,
        /// The layer's number of retained experts.
        retained: usize,
        /// The tensor's shape.
        found: Vec<usize>,
    },

    /// A constant for an expert that is not declared as substituted.
    #[error(
        "tensor `{tensor}` is a constant for expert {expert} of layer {layer}, which config.json \
         does not declare as substituted (declared: {declared:?})"
    )]
    UndeclaredConstant {
        /// The constant.
        tensor: String,
        /// Its layer.
        layer: u32,
        /// Its expert.
        expert: u32,
        /// What is declared for the layer.
        declared: Vec<u32>,
    },

    /// A constant of another module than the layer's experts.
    #[error(
        "tensor `{tensor}` is a constant of module `{found}`, but the experts of layer {layer} are \
         at `{expected}`"
    )]
    ConstantModule {
        /// The constant.
        tensor: String,
        /// Its layer.
        layer: u32,
        /// The module that it names.
        found: String,
        /// The module of the layer's experts.
        expected: String,
    },

    /// A constant, or a weight, of the wrong shape.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// The shape that the model asks for.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
    },

    /// A tensor whose elements are not floats of a supported type.
    #[error("tensor `{tensor}` has dtype {found}, expected f32, f16 or bf16")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: Dtype,
    },

    /// A finite constant that the model's type cannot hold.
    #[error("tensor `{tensor}` holds {value}, which overflows the model's dtype {dtype}")]
    ConstantOverflow {
        /// The constant.
        tensor: String,
        /// The first value that does not fit.
        value: f32,
        /// The type that the constants are held in.
        dtype: Dtype,
    },

    /// Tensors that nobody takes and no rule skips.
    #[error("{0} unexpected in this model: {1}", tensors(*.count), some(.names, *.count))]
    UnexpectedTensors {
        /// The first of them.
        names: Vec<String>,
        /// How many there are.
        count: usize,
    },

    /// Constants or weights that did not arrive.
    #[error("{}", missing(.constants, .weights))]
    Missing {
        /// Constants that did not arrive.
        constants: Listing,
        /// Weights that did not arrive.
        weights: Listing,
    },

    /// A reload that brings a part of a layer only.
    #[error(
        "reloading experts of layer {layer} needs the whole layer, this call lacks {}",
        some(.missing.names(), .missing.count())
    )]
    PartialReload {
        /// The layer.
        layer: u32,
        /// What it lacks.
        missing: Listing,
    },

    /// The stream of tensors failed.
    #[error(transparent)]
    Stream(BoxError),

    /// The model's own loader failed.
    #[error(transparent)]
    Model(BoxError),
}

impl SubstitutionError {
    pub(crate) fn config(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// Wraps an error of a model's own loader.
    pub fn model(error: impl Into<BoxError>) -> Self {
        let error = error.into();
        match error.downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::Model(other),
        }
    }

    /// Wraps an error of a stream of tensors.
    pub fn stream(error: impl Into<BoxError>) -> Self {
        let error = error.into();
        match error.downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::Stream(other),
        }
    }
}

/// Names, of which a message shows the first eight, and their count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    names: Vec<String>,
    count: usize,
}

impl Listing {
    /// How many names a message shows.
    pub const SHOWN: usize = 8;

    /// Counts a name, and keeps it where it is among the first.
    pub fn push(&mut self, name: impl FnOnce() -> String) {
        if self.names.len() < Self::SHOWN {
            self.names.push(name());
        }
        self.count += 1;
    }

    /// The first names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many there are in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The error that these tensors are unexpected, if there are any.
    ///
    /// # Errors
    ///
    /// [`SubstitutionError::UnexpectedTensors`] with the first names and the count.
    pub fn none_unexpected(self) -> Result<(), SubstitutionError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(SubstitutionError::UnexpectedTensors {
            names: self.names,
            count: self.count,
        })
    }

    /// The error that these weights did not arrive, if there are any.
    ///
    /// # Errors
    ///
    /// [`SubstitutionError::Missing`] with the first names and the count.
    pub fn none_missing(self) -> Result<(), SubstitutionError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(SubstitutionError::Missing {
            constants: Self::default(),
            weights: self,
        })
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&some(&self.names, self.count))
    }
}

fn some(names: &[String], count: usize) -> String {
    let shown = names.join(", ");
    match count.saturating_sub(names.len()) {
        0 => shown,
        more => format!("{shown} and {more} more ({count} in all)"),
    }
}

fn tensors(count: usize) -> String {
    match count {
        1 => "1 tensor is".into(),
        n => format!("{n} tensors are"),
    }
}

fn missing(constants: &Listing, weights: &Listing) -> String {
    let part = |what: &str, listing: &Listing| {
        let plural = if listing.count == 1 { "" } else { "s" };
        format!("{} {what}{plural} missing: {listing}", listing.count)
    };
    match (constants.is_empty(), weights.is_empty()) {
        (false, false) => format!(
            "{}; {}",
            part("constant", constants),
            part("weight", weights)
        ),
        (false, true) => part("constant", constants),
        _ => part("weight", weights),
    }
}

fn alias(tensor: &str, first: &str) -> String {
    if tensor == first {
        String::new()
    } else {
        format!(", the first time as `{first}`")
    }
}
