//! `Generator`: where a text ends, what repetition costs, batches, and who may stop them.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::mpsc;

use locum::models::{
    Cancellation, Finish, GenerateOptions, Generated, Generator, LoadOptions, Logits, Model,
    ModelError, ModelFiles, Prompt, RepetitionPenalty, Request, Sampling,
};
use locum::nn::DType;
use locum_tests::{EditedModel, fixture, load};
use serde_json::json;
use tokenizers::Tokenizer;

/// What transformers generates greedily after "Emma was" from the unpruned model.
const AFTER_EMMA_WAS: &str = " not quite avoided.\n\n\"I am sure you will not be able to go to Bath, and I will be \
so very much obliged to you, and I am sure you will be very glad to see you.\"\n\n\"I am sure you will be very glad to";

/// Prompts of 2 to 18 tokens.
const PROMPTS: [&str; 4] = [
    "Emma was",
    "And the Lord said unto Moses, Speak unto the children of Israel",
    "Alice",
    "The king and",
];

/// The unpruned model and its tokenizer.
struct Tiny {
    model: Model,
    tokenizer: Tokenizer,
}

impl Tiny {
    fn load() -> Self {
        let files = ModelFiles::open(fixture("tiny-olmoe")).unwrap();
        Self {
            model: load(&fixture("tiny-olmoe"), DType::F32),
            tokenizer: files.tokenizer().unwrap(),
        }
    }

    fn generator(&self) -> Generator<'_> {
        Generator::new(&self.model, &self.tokenizer)
    }

    /// Generates from one prompt; what the callback got must be the text.
    fn generate(&self, prompt: &str, options: &GenerateOptions) -> Generated {
        let mut streamed = String::new();
        let generated = self
            .generator()
            .generate(prompt, options, |new| {
                streamed.push_str(new);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(streamed, generated.text);
        generated
    }
}

fn greedy(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_new_tokens,
        end_tokens: vec![0],
        ..GenerateOptions::default()
    }
}

fn stopping(stop: &[&str]) -> GenerateOptions {
    GenerateOptions {
        stop: stop.iter().map(ToString::to_string).collect(),
        ..greedy(60)
    }
}

fn drawing(seed: u64) -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling::Random {
            temperature: 0.9,
            top_k: Some(100),
            top_p: Some(0.95),
            seed,
        },
        ..greedy(40)
    }
}

fn tokens(generated: &[Generated]) -> Vec<&[u32]> {
    generated.iter().map(|g| &g.tokens[..]).collect()
}

#[test]
fn stop_string_that_spans_tokens_ends_the_text_before_it() {
    let tiny = Tiny::load();
    let generated = tiny.generate("Emma was", &stopping(&["h, and I w"]));
    assert_eq!(
        generated.text,
        " not quite avoided.\n\n\"I am sure you will not be able to go to Bat"
    );
    assert_eq!(generated.finish, Finish::StopString);
    // The tokens are those up to the one that completed it: " will".
    let text = tiny.tokenizer.decode(&generated.tokens, true).unwrap();
    assert_eq!(text, format!("{}h, and I will", generated.text));
}

#[test]
fn stop_string_that_comes_first_ends_the_text() {
    let tiny = Tiny::load();
    let generated = tiny.generate(
        "Emma was",
        &stopping(&["very much", "avoid", "Bath", "\n\n"]),
    );
    assert_eq!(generated.text, " not quite ");
    assert_eq!(generated.finish, Finish::StopString);
}

#[test]
fn text_that_did_not_become_a_stop_string_is_not_lost() {
    let tiny = Tiny::load();
    for stop in ["avoided.\n\n\"I am sorry", "very glad to see him"] {
        let generated = tiny.generate("Emma was", &stopping(&[stop]));
        assert_eq!(generated.text, AFTER_EMMA_WAS);
        assert_eq!(generated.finish, Finish::MaxNewTokens);
    }
}

#[test]
fn stop_string_in_the_prompt_does_not_count() {
    let tiny = Tiny::load();
    let generated = tiny.generate("Emma was", &stopping(&["Emma"]));
    assert_eq!(generated.finish, Finish::MaxNewTokens);
}

#[test]
fn end_token_releases_what_was_held_back() {
    let tiny = Tiny::load();
    // " quite" is the second token; "t q" begins in the first.
    let end = tiny.generator().encode(" quite").unwrap();
    assert_eq!(end.len(), 1);
    let options = GenerateOptions {
        end_tokens: end,
        ..stopping(&["t q"])
    };
    let generated = tiny.generate("Emma was", &options);
    assert_eq!(generated.text, " not");
    assert_eq!(generated.finish, Finish::EndToken);
}

#[test]
fn special_token_as_stop_string_is_an_end_token() {
    let tiny = Tiny::load();
    // A model tuned for chat names its end-of-turn token so. Here it is a word of the greedy text.
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("tiny-olmoe/tokenizer.json")).unwrap())
            .unwrap();
    let quite = file["model"]["vocab"]["Ġquite"].clone();
    file["added_tokens"].as_array_mut().unwrap().push(json!({
        "id": quite, "content": "Ġquite", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
    }));
    let tokenizer = Tokenizer::from_bytes(file.to_string()).unwrap();
    let generated = Generator::new(&tiny.model, &tokenizer)
        .generate("Emma was", &stopping(&["Ġquite"]), |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(generated.text, " not");
    assert_eq!(generated.finish, Finish::EndToken);
}

#[test]
fn text_is_passed_in_whole_characters() {
    let tiny = Tiny::load();
    for seed in 0..8 {
        // Hot enough that bytes of many scripts come up, most of which are no character together.
        let options = GenerateOptions {
            sampling: Sampling::Random {
                temperature: 4.0,
                top_k: None,
                top_p: None,
                seed,
            },
            ..greedy(300)
        };
        let generated = tiny.generate("Emma was", &options);
        let all = [&generated.prompt[..], &generated.tokens].concat();
        let whole = tiny.tokenizer.decode(&all, true).unwrap();
        let rest = whole.strip_prefix("Emma was").unwrap();
        let missing = rest.strip_prefix(&generated.text);
        let missing = missing.unwrap_or_else(|| panic!("{rest:?}, {:?}", generated.text));
        assert!(missing.chars().all(|c| c == '\u{fffd}'), "{missing:?}");
    }
}

#[test]
fn penalty_divides_positive_and_multiplies_negative_logits_once() {
    let mut penalty = RepetitionPenalty::new(2.0).unwrap();
    penalty.see([0, 1, 3]);
    penalty.see([1, 5, 900]);
    let mut logits = [3.0, -3.0, 5.0, 0.0, -5.0, f32::NEG_INFINITY];
    penalty.apply(&mut logits);
    assert_eq!(logits, [1.5, -6.0, 5.0, 0.0, -5.0, f32::NEG_INFINITY]);
}

#[test]
fn penalty_of_one_changes_nothing() {
    let mut penalty = RepetitionPenalty::new(1.0).unwrap();
    penalty.see(0..3);
    let mut logits = [0.1, -0.2, f32::INFINITY];
    penalty.apply(&mut logits);
    assert_eq!(logits, [0.1, -0.2, f32::INFINITY]);
}

/// Greedy tokens without a cache, by the definition of the penalty.
fn penalised_greedy(model: &Model, prompt: &[u32], new: usize, penalty: f32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..new {
        let ids: Vec<i64> = tokens.iter().map(|&id| id.into()).collect();
        let mut caches = [model.new_cache()];
        let logits = model.logits(&[ids], &mut caches, Logits::Last).unwrap();
        let score = |id: usize| match logits[id] {
            logit if !tokens.contains(&(id as u32)) => logit,
            logit if logit > 0.0 => logit / penalty,
            logit => logit * penalty,
        };
        let best = (0..logits.len())
            .max_by(|&a, &b| score(a).total_cmp(&score(b)).then(b.cmp(&a)))
            .unwrap();
        tokens.push(best as u32);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn penalty_counts_tokens_of_the_prompt_and_new_ones() {
    let tiny = Tiny::load();
    let prompt = "I am sure you will be very glad";
    let options = GenerateOptions {
        repetition_penalty: 1.3,
        ..greedy(40)
    };
    let generated = tiny.generate(prompt, &options);
    let expected = penalised_greedy(&tiny.model, &generated.prompt, 40, 1.3);
    assert_eq!(generated.tokens, expected);
    assert_ne!(generated.tokens, tiny.generate(prompt, &greedy(40)).tokens);
}

#[test]
fn batch_is_what_its_prompts_give_one_by_one() {
    let tiny = Tiny::load();
    let options = [greedy(40), drawing(11)];
    for options in &options {
        let requests = PROMPTS.map(|prompt| Request {
            prompt: prompt.into(),
            options,
        });
        let mut streamed = vec![String::new(); PROMPTS.len()];
        let batch = tiny
            .generator()
            .generate_batch(&requests, |index, new| {
                streamed[index].push_str(new);
                ControlFlow::Continue(())
            })
            .unwrap();
        let alone = PROMPTS.map(|prompt| tiny.generate(prompt, options));
        assert_eq!(tokens(&batch), tokens(&alone));
        for ((batch, alone), streamed) in batch.iter().zip(&alone).zip(&streamed) {
            assert_eq!(batch.prompt, alone.prompt);
            assert_eq!(batch.text, alone.text);
            assert_eq!(streamed, &alone.text);
            assert_eq!(batch.finish, alone.finish);
        }
    }
}

#[test]
fn sequences_of_a_batch_end_each_for_its_own_reason() {
    let tiny = Tiny::load();
    let options = [
        stopping(&["Bath"]),
        greedy(3),
        GenerateOptions {
            repetition_penalty: 1.2,
            ..drawing(5)
        },
        greedy(0),
    ];
    let requests: Vec<Request> = PROMPTS
        .iter()
        .zip(&options)
        .map(|(&prompt, options)| Request {
            prompt: prompt.into(),
            options,
        })
        .collect();
    let batch = tiny
        .generator()
        .generate_batch(&requests, |_, _| ControlFlow::Continue(()))
        .unwrap();
    let alone: Vec<_> = PROMPTS
        .iter()
        .zip(&options)
        .map(|(prompt, options)| tiny.generate(prompt, options))
        .collect();
    assert_eq!(tokens(&batch), tokens(&alone));
    assert_eq!(batch[0].finish, Finish::StopString);
    assert_eq!(batch[1].tokens.len(), 3);
    assert_eq!(batch[2].tokens.len(), 40);
    assert_eq!(batch[3].tokens.len(), 0);
}

#[test]
fn draws_of_a_batch_follow_the_seeds_of_its_requests() {
    let tiny = Tiny::load();
    let options = [3, 4, 3].map(drawing);
    let requests = options.each_ref().map(|options| Request {
        prompt: "Alice".into(),
        options,
    });
    let batch = tiny
        .generator()
        .generate_batch(&requests, |_, _| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(batch[0].tokens, batch[2].tokens);
    assert_ne!(batch[0].tokens, batch[1].tokens);
}

#[test]
fn empty_batch_gives_nothing() {
    let tiny = Tiny::load();
    let batch = tiny
        .generator()
        .generate_batch(&[], |_, _| ControlFlow::Continue(()));
    assert_eq!(batch.unwrap(), []);
}

#[test]
fn long_prompt_in_pieces_is_the_prompt_at_once() {
    let tiny = Tiny::load();
    let mut edited = EditedModel::of_fixture("tiny-olmoe");
    edited.config["max_position_embeddings"] = json!(2048);
    let model = edited.load(&LoadOptions::default());
    let heldout = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    let encoding = tiny.tokenizer.encode(heldout.as_str(), false).unwrap();
    // Two whole pieces and a bit, exactly two, and one token more than one.
    let prompts = [1100, 1024, 513].map(|length| encoding.get_ids()[..length].to_vec());
    let options = greedy(4);
    let requests: Vec<Request> = prompts
        .iter()
        .map(|prompt| Request {
            prompt: prompt.into(),
            options: &options,
        })
        .collect();
    let batch = Generator::new(&model, &tiny.tokenizer)
        .generate_batch(&requests, |_, _| ControlFlow::Continue(()))
        .unwrap();
    for (generated, prompt) in batch.iter().zip(&prompts) {
        let expected = penalised_greedy(&model, prompt, 4, 1.0);
        assert_eq!(generated.tokens, expected, "{} tokens", prompt.len());
    }
}

#[test]
fn callback_ends_its_own_sequence_only() {
    let tiny = Tiny::load();
    let options = greedy(10);
    let requests = ["Emma was", "Alice"].map(|prompt| Request {
        prompt: prompt.into(),
        options: &options,
    });
    let batch = tiny
        .generator()
        .generate_batch(&requests, |index, _| match index {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap();
    assert_eq!(batch[0].finish, Finish::Stopped);
    assert_eq!(batch[0].text, " not");
    assert_eq!(batch[1].finish, Finish::MaxNewTokens);
    assert_eq!(batch[1].tokens, tiny.generate("Alice", &options).tokens);
}

#[test]
fn another_thread_ends_generation_before_the_next_token() {
    let tiny = Tiny::load();
    let options = greedy(400);
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel::<()>();
    let flag = options.cancellation.clone();
    let canceller = std::thread::spawn(move || {
        asked.recv().unwrap();
        flag.cancel();
        tell.send(()).unwrap();
    });
    let generated = tiny
        .generator()
        .generate("Emma was", &options, |_| {
            ask.send(()).unwrap();
            told.recv().unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
    canceller.join().unwrap();
    assert_eq!(generated.finish, Finish::Cancelled);
    assert_eq!(generated.text, " not");
    assert!(options.cancellation.is_cancelled());
}

#[test]
fn one_flag_ends_a_whole_batch() {
    let tiny = Tiny::load();
    let cancellation = Cancellation::default();
    let options = [greedy(400), drawing(1)].map(|options| GenerateOptions {
        cancellation: cancellation.clone(),
        ..options
    });
    let requests = options.each_ref().map(|options| Request {
        prompt: "Emma was".into(),
        options,
    });
    let mut pieces = 0;
    let batch = tiny
        .generator()
        .generate_batch(&requests, |_, _| {
            pieces += 1;
            if pieces == 6 {
                cancellation.cancel();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    for generated in batch {
        assert_eq!(generated.finish, Finish::Cancelled);
        assert!(generated.tokens.len() <= 6);
    }
}

#[test]
fn options_that_were_cancelled_before_generate_nothing() {
    let tiny = Tiny::load();
    let options = greedy(5);
    options.cancellation.cancel();
    let generated = tiny.generate("Emma was", &options);
    assert_eq!(generated.finish, Finish::Cancelled);
    assert!(generated.tokens.is_empty());
}

#[test]
fn options_outside_their_range_are_refused() {
    for penalty in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60, 1e60] {
        let options = GenerateOptions {
            repetition_penalty: penalty,
            ..greedy(1)
        };
        let error = options.check().unwrap_err().to_string();
        assert!(
            error.starts_with("repetition-penalty is ") && error.ends_with("a number above 0"),
            "{error}"
        );
    }
    assert!(matches!(
        stopping(&[""]).check(),
        Err(ModelError::EmptyStop)
    ));
}

#[test]
fn error_of_a_batch_names_the_request_and_that_of_one_prompt_does_not() {
    let tiny = Tiny::load();
    let options = greedy(1);
    let request = |prompt| Request {
        prompt,
        options: &options,
    };
    let error = tiny
        .generator()
        .generate_batch(
            &[request(Prompt::Text("Alice")), request(Prompt::Text(""))],
            |_, _| panic!("nothing is generated"),
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "request 1: the prompt is empty: give at least one token"
    );
    let error = tiny
        .generator()
        .generate(&vec![5, 2048], &options, |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "token id 2048 is outside the model's vocabulary of 2048"
    );
}
