//! Chat templates of the shapes that published models have, and what is wrong with others.
//!
//! The expected prompts are written by hand.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;

use locum::models::{
    Chat, ChatTemplate, GenerateOptions, Generator, Message, ModelError, ModelFiles, Prompt,
};
use locum::nn::DType;
use locum_tests::{fixture, load};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::Tokenizer;

/// Roles by name between two marks; a system message of its own where none is given; tools.
const CHATML: &str = r#"
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last_user=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last_user = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content and loop.index0 < ns.last_user %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ content.strip() ~ '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"#;

/// Instructions in brackets, special tokens by name, strict about who speaks when.
const INSTRUCT: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\n\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"#;

/// Roles in marks, on one line: what line breaks there are must be written.
const OLMOE: &str = "{{ bos_token }}{% for message in messages %}\n{% if message['role'] == 'system' %}\n\
    {{ '<|system|>\\n' + message['content'] }}\n{% elif message['role'] == 'user' %}\n\
    {{ '<|user|>\\n' + message['content'] }}\n{% elif message['role'] == 'assistant' %}\n\
    {{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n\
    {% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}";

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    ChatTemplate::new(source, tokens.map(|(n, t)| (n.into(), t.into()))).unwrap()
}

fn conversation() -> Chat {
    Chat::new([
        Message::system("Be brief."),
        Message::user("Who is Emma?"),
        Message::assistant("<think>a novel</think>\n\nHandsome, clever, and rich. "),
        Message::user("Is she \"kind\" & <good>?"),
    ])
}

fn question() -> Chat {
    Chat::new([Message::user("Who is Emma?")])
}

/// Renders a template that has to fail: its line, and the reason.
fn failure(source: &str, chat: &Chat) -> (Option<usize>, String) {
    let rendered = ChatTemplate::new(source, []).and_then(|template| template.render(chat));
    match rendered {
        Err(ModelError::ChatTemplate { line, reason }) => (line, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn chatml_prompt() {
    let template = template(CHATML);
    assert_eq!(
        template.render(&conversation()).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n\
         <|im_start|>user\nWho is Emma?<|im_end|>\n\
         <|im_start|>assistant\nHandsome, clever, and rich.<|im_end|>\n\
         <|im_start|>user\nIs she \"kind\" & <good>?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let unanswered = Chat {
        add_generation_prompt: false,
        ..question()
    };
    assert_eq!(
        template.render(&unanswered).unwrap(),
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n\
         <|im_start|>user\nWho is Emma?<|im_end|>\n"
    );
}

#[test]
fn instruct_prompt() {
    let template = template(INSTRUCT);
    assert_eq!(
        template.render(&conversation()).unwrap(),
        "<s> [INST] Be brief.\n\nWho is Emma? [/INST] <think>a novel</think>\n\nHandsome, clever, and rich. \
         </s> [INST] Is she \"kind\" & <good>? [/INST]"
    );
    assert_eq!(
        template.render(&question()).unwrap(),
        "<s> [INST] Who is Emma? [/INST]"
    );
}

#[test]
fn olmoe_prompt() {
    let template = template(OLMOE);
    assert_eq!(
        template.render(&conversation()).unwrap(),
        "<s><|system|>\nBe brief.\n<|user|>\nWho is Emma?\n\
         <|assistant|>\n<think>a novel</think>\n\nHandsome, clever, and rich. </s>\n\
         <|user|>\nIs she \"kind\" & <good>?\n<|assistant|>\n"
    );
    assert_eq!(
        template.render(&question()).unwrap(),
        "<s><|user|>\nWho is Emma?\n<|assistant|>\n"
    );
}

#[test]
fn macros_json_and_python_methods_do_what_they_do_in_python() {
    for (source, expected) in [
        (
            "{% macro turn(m, end='!') %}[{{ m.role|upper }}] {{ m['content']|trim }}{{ end }}{% endmacro %}\
             {{ turn(messages[0]) }}{{ turn(messages[0], end='') }}",
            "[USER] Who is Emma?![USER] Who is Emma?",
        ),
        (
            "{{ {'b': [1, 2.0, none, true], 'a': '<é & \"x\">'} | tojson }}",
            r#"{"b": [1, 2.0, null, true], "a": "<é & \"x\">"}"#,
        ),
        (
            "{{ {'b': [1], 'a': {}} | tojson(indent=2) }}",
            "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}",
        ),
        (
            "{{ 'é😀' | tojson(ensure_ascii=true) }}",
            r#""\u00e9\ud83d\ude00""#,
        ),
        ("{{ '  a b,c '.strip().split(',') | join('|') }}", "a b|c"),
        (
            "{{ 'xxabxx'.strip('x').replace('a', 'c').upper().endswith('CB') }}",
            "True",
        ),
        (
            "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}",
            "role=user;content=Who is Emma?;",
        ),
        (
            "{{ messages[0].get('name', 'nobody') }}{{ messages[0].name }}",
            "nobody",
        ),
        (
            "{{ tools is none }} {{ documents is none }} {{ pad_token is defined }}",
            "True True False",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "1",
        ),
        (
            "{%- for i in range(9) %}{% if i % 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02468",
        ),
    ] {
        assert_eq!(
            template(source).render(&question()).unwrap(),
            expected,
            "{source}"
        );
    }
}

#[test]
fn date_is_todays() {
    let year = template("{{ strftime_now('%Y') }}").render(&question());
    let year: u32 = year.unwrap().parse().unwrap();
    assert!((2025..2200).contains(&year), "{year}");
}

#[test]
fn refusal_of_a_template_is_an_error_with_its_line() {
    let template = template(INSTRUCT);
    let twice = Chat::new([Message::user("A"), Message::user("B")]);
    assert_eq!(
        template.render(&twice).unwrap_err().to_string(),
        "chat template, line 10: it refuses the chat: After the optional system message, \
         conversation roles must alternate user/assistant/user/assistant/..."
    );
    let role = Chat::new([Message::user("A"), Message::new("tool", "B")]);
    let error = template.render(&role).unwrap_err().to_string();
    assert!(error.starts_with("chat template, line 21: "), "{error}");
}

#[test]
fn broken_template_is_an_error_with_its_line() {
    for (source, line, part) in [
        ("a\n{% if %}", 2, "syntax error"),
        ("a\n\n{{ 'open", 3, "syntax error"),
        ("{% for m in messages %}\n{{ m.content }}\n", 2, "end"),
        ("\n{{ messages | reversed_twice }}", 2, "reversed_twice"),
        ("\n\n{{ none_such() }}", 3, "none_such"),
        ("{{ messages[0].content.swapcase() }}", 1, "swapcase"),
        (
            "\n{{ bos_token + messages[0].content }}",
            2,
            "undefined and string",
        ),
        ("{{ messages[0].a.b }}", 1, "`messages[0].a` is undefined"),
        ("\n{{ 1 // 0 }}", 2, ""),
        ("{{ messages | tojson(colour=1) }}", 1, "colour"),
        ("{{ messages | tojson(indent=1000) }}", 1, "cannot convert"),
        ("\n{{ strftime_now('%Q') }}", 2, "%Q"),
        (
            "{% macro m() %}\n{{ raise_exception('no') }}\n{% endmacro %}\n\n{{ m() }}",
            2,
            "refuses the chat: no",
        ),
    ] {
        let (found, reason) = failure(source, &question());
        assert_eq!(found, Some(line), "{source:?}: {reason}");
        assert!(reason.contains(part), "{source:?}: {reason}");
    }
}

#[test]
fn template_that_does_not_end_is_an_error() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 100000000000 }}",
        "{{ range(0, 1000000000000) | list | length }}",
    ] {
        failure(source, &question());
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    failure(&nested, &question());
}

/// A model directory of which only what a chat template needs is there.
fn directory(template: Option<&str>, tokenizer_config: Option<&Value>) -> TempDir {
    let directory = TempDir::new().unwrap();
    let write = |file: &str, text: &str| std::fs::write(directory.path().join(file), text).unwrap();
    write("config.json", "{}");
    if let Some(template) = template {
        write("chat_template.jinja", template);
    }
    if let Some(config) = tokenizer_config {
        write("tokenizer_config.json", &config.to_string());
    }
    directory
}

fn read(directory: &Path) -> Result<String, String> {
    let template = ModelFiles::open(directory)
        .unwrap()
        .chat_template()
        .map_err(|error| error.to_string())?;
    template
        .render(&question())
        .map_err(|error| error.to_string())
}

#[test]
fn template_is_found_beside_the_tokenizer_or_in_its_config() {
    let tokens = json!({
        "bos_token": { "content": "<b>", "lstrip": false },
        "eos_token": "<e>",
        "unk_token": null,
    });
    let with = |template: Value| {
        let mut config = tokens.clone();
        config["chat_template"] = template;
        config
    };
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}";
    let expected = Ok("<b>Who is Emma?<e>".to_owned());
    let found = |template, config: &Value| read(directory(template, Some(config)).path());
    assert_eq!(found(None, &with(json!(source))), expected);
    let named = json!([
        { "name": "tool_use", "template": "tools" },
        { "name": "default", "template": source },
    ]);
    assert_eq!(found(None, &with(named)), expected);
    // The file comes first.
    assert_eq!(found(Some(source), &with(json!("other"))), expected);
    assert_eq!(
        read(directory(Some("{{ messages[0].role }}\n"), None).path()),
        Ok("user".to_owned())
    );
}

#[test]
fn model_without_template_names_the_files_looked_for() {
    for config in [None, Some(json!({ "chat_template": null }))] {
        let directory = directory(None, config.as_ref());
        let error = read(directory.path()).unwrap_err();
        for part in [
            "no chat template for",
            directory.path().to_str().unwrap(),
            "chat_template.jinja",
            "tokenizer_config.json",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn unusable_template_names_its_file() {
    let unnamed = json!({ "chat_template": [{ "name": "rag", "template": "a" }] });
    let number = json!({ "chat_template": 3 });
    let token = json!({ "chat_template": "a", "bos_token": 1 });
    let broken = json!({ "chat_template": "a\n{% if %}" });
    for (template, config, parts) in [
        (
            None,
            Some(&unnamed),
            [
                "tokenizer_config.json: `chat_template`",
                "`default`, only: rag",
            ],
        ),
        (
            None,
            Some(&number),
            ["tokenizer_config.json: `chat_template`", "must be"],
        ),
        (
            None,
            Some(&token),
            ["tokenizer_config.json: `bos_token`", "found 1"],
        ),
        (
            None,
            Some(&broken),
            ["tokenizer_config.json: chat template, line 2: ", "syntax"],
        ),
        (
            Some("{{"),
            None,
            ["chat_template.jinja: chat template, line 1: ", "syntax"],
        ),
        (Some(""), None, ["chat_template.jinja", "empty"]),
    ] {
        let error = read(directory(template, config).path()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn special_tokens_are_not_added_to_a_formatted_prompt() {
    // A tokenizer that puts token 0 first, as many do with the one that begins a text.
    let file = std::fs::read(fixture("tiny-olmoe/tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&file).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [
            { "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
        ],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }],
        "special_tokens": {
            "<|endoftext|>": { "id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"] }
        },
    });
    let tokenizer = Tokenizer::from_bytes(file.to_string()).unwrap();
    let model = load(&fixture("tiny-olmoe"), DType::F32);
    let generator = Generator::new(&model, &tokenizer);
    let words = generator.encode(Prompt::Formatted("Emma was")).unwrap();
    let text = generator.encode("Emma was").unwrap();
    assert_eq!(text, [&[0][..], &words].concat());
    let template = "{{ bos_token }}{{ messages[0].content }}";
    let template = ChatTemplate::new(template, [("bos_token".into(), "<|endoftext|>".into())]);
    let formatted = template
        .unwrap()
        .render(&Chat::new([Message::user("Emma was")]))
        .unwrap();
    let options = GenerateOptions {
        max_new_tokens: 1,
        ..GenerateOptions::default()
    };
    let generated = generator
        .generate(Prompt::Formatted(&formatted), &options, |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(generated.prompt, text);
}
