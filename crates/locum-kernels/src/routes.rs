//! Which tokens go to which physical row.

use crate::KernelError;

/// For each physical row, its tokens with their router weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// `[rows + 1]`: where each row's tokens start.
    starts: Vec<usize>,
    /// `[routes]`
    tokens: Vec<usize>,
    /// `[routes]`
    weights: Vec<f32>,
}

impl Routes {
    /// From the tokens and router weights of each row.
    ///
    /// ```
    /// let routes = locum_kernels::Routes::from_rows([vec![(0, 0.75), (2, 0.5)], vec![]]);
    /// assert_eq!((routes.rows(), routes.len()), (2, 2));
    /// ```
    #[must_use]
    pub fn from_rows<Row>(rows: impl IntoIterator<Item = Row>) -> Self
    where
        Row: IntoIterator<Item = (usize, f32)>,
    {
        let mut routes = Self {
            starts: vec![0],
            ..Self::default()
        };
        for row in rows {
            for (token, weight) in row {
                routes.tokens.push(token);
                routes.weights.push(weight);
            }
            routes.starts.push(routes.tokens.len());
        }
        routes
    }

    /// Physical rows, those without tokens included.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no token goes to any row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The rows that some token goes to, in order.
    pub(crate) fn active(&self) -> impl Iterator<Item = Active<'_>> {
        self.starts
            .windows(2)
            .enumerate()
            .filter_map(|(row, ends)| {
                let range = ends[0]..ends[1];
                (!range.is_empty()).then(|| Active {
                    row,
                    first: range.start,
                    tokens: &self.tokens[range.clone()],
                    weights: &self.weights[range],
                })
            })
    }

    pub(crate) fn check(&self, tokens: usize) -> Result<(), KernelError> {
        for active in self.active() {
            if let Some(&token) = active.tokens.iter().find(|&&token| token >= tokens) {
                return Err(KernelError::Token {
                    row: active.row,
                    token,
                    tokens,
                });
            }
        }
        Ok(())
    }
}

/// A row that some token goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active<'a> {
    pub(crate) row: usize,
    /// The place of its first route among all routes.
    pub(crate) first: usize,
    pub(crate) tokens: &'a [usize],
    pub(crate) weights: &'a [f32],
}
