"""What one section says about another: names that must exist, claims that cannot be true."""

from datetime import date

import pytest

from tests.gateway.settings_text import load_settings, problems_of, warnings_of

SERVER = "{kind: openai_compatible, base_url: 'http://10.0.0.5/v1'"

PROBLEMS = {
    "an unknown provider names the nearest": (
        f"providers: {{server: {SERVER}}}}}\nmodels: {{m: {{deployments: [servr/x]}}}}",
        "f.yaml:2: models.m.deployments[0]: unknown provider `servr`; did you mean `server`?",
    ),
    "an unknown local model names the nearest": (
        (
            "providers: {l: {kind: local, models: [{id: tiny, source: 'hf:a/b'}]}}\n"
            "models: {m: {deployments: [l/tinny]}}"
        ),
        (
            "f.yaml:2: models.m.deployments[0]: provider `l` has no model `tinny`; "
            "did you mean `tiny`?"
        ),
    ),
    "months of entries to drop on SQLite": (
        "retention: {events_months: 13}",
        (
            "f.yaml:1: retention.events_months: entries are dropped by month on PostgreSQL only; "
            "take it out, or name one there"
        ),
    ),
    "a baseline of an unknown model": (
        (
            f"providers: {{s: {SERVER}, price: {{input_usd_per_mtok: 1}}}}}}\n"
            "models: {chat: {deployments: [s/x]}}\nfinance: {baseline: {models: {chatt: s/x}}}"
        ),
        "f.yaml:3: finance.baseline.models.chatt: unknown model `chatt`; did you mean `chat`?",
    ),
    "a baseline without a price": (
        (
            f"providers: {{s: {SERVER}}}}}\nmodels: {{chat: {{deployments: [s/x]}}}}\n"
            "finance: {baseline: {models: {chat: openai/gpt}}}"
        ),
        (
            "f.yaml:3: finance.baseline.models.chat: `openai/gpt` has no price to compare with; "
            "give it `price` here"
        ),
    ),
    "a baseline with two prices": (
        (
            f"providers: {{s: {SERVER}}}}}\n"
            "models: {chat: {deployments: [{deployment: s/x, price: {request_usd: 1}}]}}\n"
            "finance: {baseline: {models: {chat: {deployment: s/x, price: {request_usd: 2}}}}}"
        ),
        (
            "f.yaml:3: finance.baseline.models.chat.price: `s/x` has a price under `models`; "
            "take one of the two out"
        ),
    ),
    "a baseline priced by the hour": (
        (
            f"providers: {{s: {SERVER}, price: {{gpu_usd_per_hour: 1}}}}}}\n"
            "models: {chat: {deployments: [s/x]}}\nfinance: {baseline: {models: {chat: s/x}}}"
        ),
        (
            "f.yaml:3: finance.baseline.models.chat: `s/x` is priced by the hour, which the same "
            "usage elsewhere has not; name one priced by usage"
        ),
    ),
    "a team that is called as spend of no team": (
        "teams: {unattributed: {}}",
        (
            "f.yaml:1: teams.unattributed: `unattributed` is what spend of no team is called; name "
            "the team otherwise"
        ),
    ),
    "a journal's account of an unknown provider": (
        (
            f"providers: {{server: {SERVER}}}}}\n"
            "finance: {journal: {entity: A, accounts: {expense: '1', clearing: '2', rounding: '3', "
            "providers: {servr: '4'}}}}"
        ),
        (
            "f.yaml:2: finance.journal.accounts.providers.servr: unknown provider `servr`; "
            "did you mean `server`?"
        ),
    ),
    "a journal in a currency without rates": (
        (
            "finance: {journal: {entity: A, currency: EUR, "
            "accounts: {expense: '1', clearing: '2', rounding: '3'}}}"
        ),
        (
            "f.yaml:1: finance.journal.currency: a journal in EUR needs exchange rates; name a file "
            "in finance.rates_file"
        ),
    ),
    "a journal in the currency of reports without rates": (
        (
            "finance: {currency: EUR, journal: {entity: A, "
            "accounts: {expense: '1', clearing: '2', rounding: '3'}}}"
        ),
        (
            "f.yaml:1: finance.journal: a journal in EUR needs exchange rates; name a file "
            "in finance.rates_file"
        ),
    ),
    "a deployment listed twice": (
        f"providers: {{s: {SERVER}}}}}\nmodels: {{m: {{deployments: [s/x, s/x]}}}}",
        "f.yaml:2: models.m.deployments[1]: `s/x` is listed twice",
    ),
    "an alias that is a model": (
        (
            f"providers: {{s: {SERVER}}}}}\n"
            "models:\n  m: {deployments: [s/x], aliases: [n]}\n  n: {deployments: [s/y]}"
        ),
        "f.yaml:3: models.m.aliases[0]: `n` is already a model",
    ),
    "an alias of two models": (
        (
            f"providers: {{s: {SERVER}}}}}\n"
            "models:\n  m: {deployments: [s/x], aliases: [k]}\n  n: {deployments: [s/y], aliases: [k]}"
        ),
        "f.yaml:4: models.n.aliases[0]: `k` is already an alias of `m`",
    ),
    "a model that looks like a deployment": (
        f"providers: {{s: {SERVER}}}}}\nmodels: {{s/x: {{deployments: [s/x]}}}}",
        "f.yaml:2: models.s/x: a model cannot begin with a provider's name (`s/`)",
    ),
    "a team's unknown model": (
        (
            f"providers: {{s: {SERVER}}}}}\nmodels: {{chat: {{deployments: [s/x]}}}}\n"
            "teams: {t: {models: [chatt]}}"
        ),
        "f.yaml:3: teams.t.models[0]: unknown model `chatt`; did you mean `chat`?",
    ),
    "a team's unknown tag": (
        "privacy: {tags: {private: {}}}\nteams: {t: {tags: [privat]}}",
        "f.yaml:2: teams.t.tags[0]: unknown tag `privat`; did you mean `private`?",
    ),
    "an unknown tag in the floor": (
        "privacy: {floor: [x]}",
        "f.yaml:1: privacy.floor[0]: unknown tag `x`; tags are listed under privacy.tags",
    ),
    "an unknown tag in a detector": (
        "privacy: {detect: {iban: [x]}}",
        "f.yaml:1: privacy.detect.iban[0]: unknown tag `x`; tags are listed under privacy.tags",
    ),
    "an unknown tag in a sink": (
        "privacy: {sinks: {response_cache: [x]}}",
        (
            "f.yaml:1: privacy.sinks.response_cache[0]: unknown tag `x`; "
            "tags are listed under privacy.tags"
        ),
    ),
    "an unknown tag for parts that cannot be read": (
        "privacy: {detect: {opaque_parts: {audio: [x]}}}",
        (
            "f.yaml:1: privacy.detect.opaque_parts.audio[0]: unknown tag `x`; "
            "tags are listed under privacy.tags"
        ),
    ),
    "tags that imply each other": (
        "privacy:\n  tags:\n    a: {implies: [b]}\n    b: {implies: [c]}\n    c: {implies: [a]}",
        "f.yaml:3: privacy.tags.a.implies: tags imply each other: a -> b -> c -> a",
    ),
    "a tag that implies itself": (
        "privacy: {tags: {a: {implies: [a]}}}",
        "f.yaml:1: privacy.tags.a.implies: tags imply each other: a -> a",
    ),
    "a key of an unknown project": (
        "teams: {t: {keys: [{name: k, value_env: K, project: frod}], projects: {fraud: {}}}}",
        "f.yaml:1: teams.t.keys[0].project: team `t` has no project `frod`; did you mean `fraud`?",
    ),
    "two keys of one name": (
        "teams: {t: {keys: [{name: k, value_env: K}, {name: k, value_env: L}]}}",
        "f.yaml:1: teams.t.keys[1]: key `k` is listed twice",
    ),
    "self_hosted at a vendor": (
        "providers: {g: {kind: groq, trust: [self_hosted]}}",
        "f.yaml:1: providers.g.trust[0]: kind groq is a vendor, never self_hosted",
    ),
    "self_hosted on a vendor's host under another kind": (
        (
            "providers: {g: {kind: vllm, base_url: 'https://api.groq.com/v1', "
            "trust: [{attribute: self_hosted, evidence: e, expires: 2999-01-01}]}}"
        ),
        (
            "f.yaml:1: providers.g.trust[0]: api.groq.com belongs to a vendor (groq.com), "
            "not self_hosted"
        ),
    ),
    "self_hosted on a public host without proof": (
        "providers: {g: {kind: vllm, base_url: 'https://llm.example.com/v1', trust: [self_hosted]}}",
        (
            "f.yaml:1: providers.g.trust[0]: self_hosted on the public host llm.example.com needs "
            "`evidence` and `expires`"
        ),
    ),
    "self_hosted claimed by one deployment only": (
        (
            "providers: {g: {kind: groq}}\n"
            "models: {m: {deployments: [{deployment: g/x, trust: [self_hosted]}]}}"
        ),
        "f.yaml:2: models.m.deployments[0].trust[0]: kind groq is a vendor, never self_hosted",
    ),
    "local claimed by a server": (
        f"providers: {{s: {SERVER}, trust: [local]}}}}",
        "f.yaml:1: providers.s.trust: `local` is given by `kind: local` only",
    ),
    "two schedules of one name": (
        (
            "alerts: {webhooks: [{name: hook, url: 'https://h.example', secret_env: S}]}\n"
            "finance: {statements: [{name: a, webhooks: [hook]}, {name: a, webhooks: [hook]}]}"
        ),
        "f.yaml:2: finance.statements[1]: schedule `a` is listed twice",
    ),
    "statements of an unknown team": (
        (
            "teams: {payments: {}}\n"
            "alerts: {webhooks: [{name: hook, url: 'https://h.example', secret_env: S}]}\n"
            "finance: {statements: [{name: a, teams: [payment], webhooks: [hook]}]}"
        ),
        (
            "f.yaml:3: finance.statements[0].teams[0]: unknown team `payment`; "
            "did you mean `payments`?"
        ),
    ),
    "statements by mail without a server": (
        "finance: {statements: [{name: a, mail: [f@example.com]}]}",
        ("f.yaml:1: finance.statements[0].mail: e-mail needs a server; name it in finance.mail"),
    ),
    "statements to an unknown webhook": (
        (
            "alerts: {webhooks: [{name: hook, url: 'https://h.example', secret_env: S}]}\n"
            "finance: {statements: [{name: a, webhooks: [hok]}]}"
        ),
        (
            "f.yaml:2: finance.statements[0].webhooks[0]: unknown webhook `hok`; "
            "did you mean `hook`?; alerts.webhooks lists them"
        ),
    ),
    "anomalies by mail without a server": (
        "finance: {anomalies: {mail: [f@example.com]}}",
        "f.yaml:1: finance.anomalies.mail: e-mail needs a server; name it in finance.mail",
    ),
    "anomalies to an unknown webhook": (
        "finance: {anomalies: {webhooks: [hook]}}",
        (
            "f.yaml:1: finance.anomalies.webhooks[0]: unknown webhook `hook`; "
            "alerts.webhooks lists them"
        ),
    ),
    "an attribute claimed twice": (
        f"providers: {{s: {SERVER}, trust: [dpa, dpa]}}}}",
        "f.yaml:1: providers.s.trust[1]: attribute `dpa` is listed twice",
    ),
}


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_reference_that_cannot_hold_is_an_error(text, problem):
    assert problems_of(text) == [problem]


SOUND = {
    "statements and anomalies to what there is": (
        "teams: {payments: {}}\n"
        "alerts: {webhooks: [{name: hook, url: 'https://h.example', secret_env: S}]}\n"
        "finance:\n"
        "  mail: {host: mail.example.com, sender: f@example.com}\n"
        "  statements: [{name: a, teams: [payments], webhooks: [hook], mail: [f@example.com]}]\n"
        "  anomalies: {webhooks: [hook], mail: [f@example.com]}"
    ),
    "self_hosted on a private address": f"providers: {{s: {SERVER}, trust: [self_hosted]}}}}",
    "self_hosted on a public host with proof": (
        "providers: {s: {kind: vllm, base_url: 'https://llm.example.com/v1', "
        "trust: [{attribute: self_hosted, evidence: contract 7, expires: 2999-01-01}]}}"
    ),
    "a team that names a deployment": (
        f"providers: {{s: {SERVER}}}}}\nteams: {{t: {{models: [s/any-model]}}}}"
    ),
    "a team that names an alias": (
        f"providers: {{s: {SERVER}}}}}\n"
        "models: {m: {deployments: [s/x], aliases: [k]}}\nteams: {t: {models: [k]}}"
    ),
    "a model id with slashes": (
        f"providers: {{s: {SERVER}}}}}\nmodels: {{m: {{deployments: [s/org/name:tag]}}}}"
    ),
    "tags that share an implication": (
        "privacy: {tags: {a: {implies: [b, c]}, b: {implies: [d]}, c: {implies: [d]}, d: {}}}"
    ),
    "names in any script": (
        f"providers: {{s: {SERVER}}}}}\nmodels: {{中文模型: {{deployments: [s/x]}}}}\n"
        "teams: {Équipe-β: {models: [中文模型], tags: [日本]}}\nprivacy: {tags: {日本: {}}}"
    ),
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND.keys())
def test_what_holds_is_accepted(text):
    assert problems_of(text) == []


def test_a_faulty_provider_is_not_also_an_unknown_one():
    text = "providers: {s: {kind: vllm}}\nmodels: {m: {deployments: [s/x]}}"
    assert problems_of(text) == ["f.yaml:1: providers.s.base_url: is required"]


def test_a_faulty_item_does_not_hide_its_neighbours():
    text = """\
    models:
      m:
        deployments:
          - no-slash
          - nowhere/x
    """
    assert problems_of(text) == [
        "f.yaml:4: models.m.deployments[0]: must be provider/model-id",
        "f.yaml:5: models.m.deployments[1]: unknown provider `nowhere`",
    ]


def test_plain_http_to_a_public_host_is_a_warning():
    loaded = load_settings("providers: {s: {kind: vllm, base_url: 'http://llm.example.com'}}")
    assert warnings_of(loaded) == [
        (
            "f.yaml:1: providers.s.base_url: plain http to a public host sends prompts and the key in "
            "the clear"
        )
    ]


def test_plain_http_to_a_private_host_is_no_warning():
    assert not load_settings(f"providers: {{s: {SERVER}}}}}").warnings


def test_a_claim_is_void_from_the_day_on_which_it_expires():
    text = f"providers: {{s: {SERVER}, trust: [{{attribute: dpa, expires: 2027-06-30}}]}}}}"
    assert not load_settings(text, today=date(2027, 6, 29)).warnings
    assert "expired on 2027-06-30" in warnings_of(load_settings(text, today=date(2027, 6, 30)))[0]


def test_a_required_attribute_that_nobody_claims_is_a_warning():
    text = "privacy: {tags: {t: {require: [fedramp, dpa, 'region:eu']}}}"
    assert warnings_of(load_settings(text)) == [
        (
            "f.yaml:1: privacy.tags.t.require[0]: no deployment claims `fedramp`; every request with "
            "tag `t` will be refused"
        )
    ]
