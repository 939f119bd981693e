//! How some tokens are divided into panels, and where an activation is in them.

use std::ops::Range;

use crate::arch::{self, Loads, Machine, Simd};
use crate::operand::Element;

/// Which product a panel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// [`arch::dot`]
    Dot,
    /// [`arch::outer`]
    Outer,
}

/// Tokens in panels: of about the same size, or all full but the last.
#[derive(Clone, Debug)]
pub(crate) struct Panels {
    pub(crate) form: Form,
    /// Elements of a token.
    pub(crate) elements: usize,
    tokens: usize,
    panels: usize,
    /// Tokens of all panels but the last, where they are full.
    full: Option<usize>,
}

/// One panel.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// Its tokens, among those that were packed.
    pub(crate) tokens: Range<usize>,
    /// Its place in the buffer.
    pub(crate) units: Range<usize>,
}

impl Panels {
    /// For a product with weights that are packed from so many tokens on.
    pub(crate) fn new<M: Simd>(tokens: usize, elements: usize, pack_from: usize) -> Self {
        let (form, most) = if tokens < pack_from {
            (Form::Dot, M::DOT_TOKENS)
        } else {
            (Form::Outer, M::OUTER_TOKENS)
        };
        Self {
            form,
            elements,
            tokens,
            panels: tokens.div_ceil(most),
            full: M::TILES.then_some(most),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.panels
    }

    /// The panels, in order.
    pub(crate) fn iter<M: Simd>(&self) -> impl Iterator<Item = Panel> + use<M> {
        let (tokens, panels, full) = (self.tokens, self.panels, self.full);
        let elements = self.elements;
        let mut unit = 0;
        (0..panels).map(move |panel| {
            let first = |panel: usize| match full {
                Some(full) => tokens.min(panel * full),
                None => panel * (tokens / panels) + panel.min(tokens % panels),
            };
            let tokens = first(panel)..first(panel + 1);
            let start = unit;
            unit += arch::panel_units::<M>(tokens.len(), elements);
            Panel {
                tokens,
                units: start..unit,
            }
        })
    }

    /// The panel that a token is in.
    pub(crate) fn of_token(&self, token: usize) -> usize {
        if let Some(full) = self.full {
            return token / full;
        }
        // The first ones have one more.
        let (tokens, larger) = (self.tokens / self.panels, self.tokens % self.panels);
        let in_larger = larger * (tokens + 1);
        if token < in_larger {
            token / (tokens + 1)
        } else {
            larger + (token - in_larger) / tokens
        }
    }

    /// Units of a buffer that holds all panels.
    pub(crate) fn units<M: Simd>(&self) -> usize {
        self.iter::<M>().last().map_or(0, |panel| panel.units.end)
    }

    /// Packs the tokens of one panel.
    pub(crate) fn pack<M: Machine + Loads<T>, T: Element>(
        &self,
        machine: M,
        rows: &[&[T]],
        panel: &mut [u32],
    ) {
        match self.form {
            Form::Dot => arch::pack_dot(machine, rows, panel),
            Form::Outer => arch::pack_outer(machine, rows, panel, rows.len()),
        }
    }

    /// Where a unit of a token is in its panel, which has `tokens` of them.
    pub(crate) fn place<M: Simd>(&self, tokens: usize, token: usize, unit: usize) -> usize {
        match self.form {
            Form::Dot => arch::place_in_dot::<M>(unit, token, tokens),
            Form::Outer => {
                let padded = arch::padded_units::<M>(self.elements);
                arch::place_in_outer::<M>(unit, padded) * tokens + token
            }
        }
    }
}
