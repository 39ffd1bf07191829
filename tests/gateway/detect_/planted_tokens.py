"""Tokens made by rule: a prefix and what is drawn behind it, apart from the patterns that look for them."""

from __future__ import annotations

import random
import string

from tests.gateway.detect_.drawing import ALNUM, DIGITS, HEX, STANDARD, URL_SAFE, Make, draw


def token(template: str) -> Make:
    """Make a token from a template: `{A12}` is twelve of an alphabet, all else stands for itself."""
    alphabets = {"A": ALNUM, "W": URL_SAFE, "X": HEX, "D": DIGITS, "U": string.ascii_uppercase + DIGITS,
        "L": string.ascii_letters, "S": STANDARD, "B": string.ascii_uppercase + "234567", "Z": string.ascii_lowercase + DIGITS}  # fmt: skip

    def make(rng: random.Random) -> str:
        pieces = template.split("{")
        made = pieces[0]
        for piece in pieces[1:]:
            order, rest = piece.split("}", 1)
            made += draw(rng, alphabets[order[0]], int(order[1:])) + rest
        return made

    return make


TOKENS: dict[str, Make] = {
    "aws_access_key": token("AKIA{B16}"),
    "aws_bedrock_key": token("ABSK{S120}"),
    "google_api_key": token("AIza{W34}{A1}"),
    "google_oauth_secret": token("GOCSPX-{W27}{A1}"),
    "google_access_token": token("ya29.{W80}{A1}"),
    "azure_storage_key": token("AccountKey={S86}=="),
    "azure_client_secret": token("{A3}8Q~{W33}{A1}"),
    "azure_sas": token("&sig={A43}%3D"),
    "github_token": token("ghp_{A36}"),
    "github_pat": token("github_pat_{A22}_{A59}"),
    "gitlab_token": token("glpat-{W19}{A1}"),
    "slack_token": token("xoxb-{D12}-{D12}-{A24}"),
    "slack_app_token": token("xapp-1-{U11}-{D13}-{X64}"),
    "slack_webhook": token("hooks.slack.com/services/T{U10}/B{U10}/{A24}"),
    "stripe_key": token("sk_live_{A24}"),
    "stripe_webhook_secret": token("whsec_{A32}"),
    "openai_key": token("sk-proj-{W155}{A1}"),
    "openai_user_key": token("sk-{A20}T3BlbkFJ{A20}"),
    "anthropic_key": token("sk-ant-api03-{W92}{A1}AA"),
    "openrouter_key": token("sk-or-v1-{X64}"),
    "groq_key": token("gsk_{A52}"),
    "huggingface_token": token("hf_{L34}"),
    "huggingface_org_token": token("api_org_{L34}"),
    "replicate_token": token("r8_{A37}"),
    "fireworks_key": token("fw_{A24}"),
    "together_key": token("tgp_v1_{W42}{A1}"),
    "cerebras_key": token("csk-{Z48}"),
    "xai_key": token("xai-{A80}"),
    "perplexity_key": token("pplx-{A48}"),
    "nvidia_key": token("nvapi-{W63}{A1}"),
    "npm_token": token("npm_{A36}"),
    "pypi_token": token("pypi-AgEIcHlwaS5vcmc{W120}{A1}"),
    "rubygems_key": token("rubygems_{X48}"),
    "twilio_key": token("SK{X32}"),
    "sendgrid_key": token("SG.{W22}.{W42}{A1}"),
    "mailgun_key": token("key-{X32}"),
    "mailchimp_key": token("{X32}-us14"),
    "telegram_bot_token": token("{D10}:AA{W32}{A1}"),
    "discord_token": token("M{A23}.{W6}.{W37}{A1}"),
    "digitalocean_token": token("dop_v1_{X64}"),
    "shopify_token": token("shpat_{X32}"),
    "square_token": token("sq0atp-{W21}{A1}"),
    "databricks_token": token("dapi{X32}"),
    "docker_token": token("dckr_pat_{W26}{A1}"),
    "vault_token": token("hvs.{W90}{A1}"),
    "terraform_token": token("{A14}.atlasv1.{W67}{A1}"),
    "new_relic_key": token("NRAK-{U27}"),
    "grafana_token": token("glsa_{A32}_{X8}"),
    "linear_key": token("lin_api_{A40}"),
    "notion_token": token("ntn_{A43}"),
    "postman_key": token("PMAK-{X24}-{X34}"),
    "doppler_token": token("dp.pt.{A43}"),
    "planetscale_token": token("pscale_tkn_{W42}{A1}"),
    "atlassian_token": token("ATATT3{W180}{A1}"),
    "supabase_token": token("sbp_{X40}"),
    "sentry_token": token("sntryu_{X64}"),
    "figma_token": token("figd_{W39}{A1}"),
    "airtable_token": token("pat{A14}.{X64}"),
    "pulumi_token": token("pul-{X40}"),
    "aws_secret_key": token("aws_secret_access_key = {S39}{A1}"),
}
