"""`heedful serve`: translators and language models over HTTP."""

from __future__ import annotations

import dataclasses
import ipaddress
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.cli.flags import (
    ConsistencyFlags,
    DeviceFlag,
    PrecisionFlag,
    SearchFlags,
    SplitFlag,
    search_settings,
)
from heedful.cli.parser import flag_group
from heedful.cli.text_io import Output, Report, print_json, say
from heedful.errors import ConfigError
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.apps.serve.served_models import ServedModels
    from heedful.apps.serve.server_settings import GateSettings, Limits

_NEEDED = (
    "torch",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "py3langid",
    "langcodes",
    "multipart",
    "sentencex",
)


@flag_group("Access", 20)
class Access:
    """Flags of the address, access rights and the log.

    Args:
        host: Address to listen on; 0.0.0.0 admits other machines.
        port: Port to listen on; 0 chooses a free one.
        keys: File of API keys; requests need no key if unset.
        new_key: Create an API key for a name, print it, add it to the --keys file, and exit without
            starting a server.
        without_keys: Allow requests without a key on an address that other machines can reach.
        cors: Origin of web pages whose scripts may send requests (CORS), such as
            https://example.org, or *; may be repeated.
        suggestions: File for better translations that clients suggest (LibreTranslate's /suggest),
            one line of JSON each; suggestions are refused if unset.
        forwarded_from: Address or network of a proxy, such as 127.0.0.1 or 10.0.0.0/8, or *, whose
            X-Forwarded-For, -Proto and -Host headers are trusted; may be repeated.
        access_log: File for the access log, one line of JSON per request, without texts; - is
            standard error, none turns the log off.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    keys: Path | None = None
    new_key: str | None = None
    without_keys: bool = False
    cors: tuple[str, ...] = ()
    suggestions: Path | None = None
    forwarded_from: tuple[str, ...] = ()
    access_log: str = "-"

    def check(self) -> None:
        """Refuse files that cannot be used, and a public address without a file of keys.

        Raises:
            ConfigError: when a file or the address is refused.
        """
        from heedful.apps.serve.gate import AccessLog
        from heedful.apps.serve.keys import Keys
        from heedful.apps.sockets import is_loopback

        if self.access_log not in ("-", "none"):
            AccessLog.open(self.access_log).close()
        if self.suggestions is not None:
            try:
                self.suggestions.open("ab").close()
            except OSError as error:
                raise ConfigError(
                    f"Suggestions cannot be written: {error.strerror}",
                    where=f"--suggestions {self.suggestions}",
                ) from None
        for proxy in self.forwarded_from:
            try:
                proxy == "*" or ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ConfigError(
                    f"This is no address or network: {error}",
                    where=f"--forwarded-from {proxy}",
                    remedy="Name the proxy's address, such as 127.0.0.1",
                ) from None
        if self.keys is not None:
            Keys.read(self.keys)
        elif not is_loopback(self.host) and not self.without_keys:
            raise ConfigError(
                "Anybody who can reach this address could use the server",
                where=f"--host {self.host}",
                remedy="Give a file of keys (--keys), or add --without-keys",
            )


@flag_group("Load", 30)
class Load:
    """Flags of workers, batches and the limits of a request.

    Args:
        workers: Number of worker processes, which share the CPU cores.
        memory: Maximum size of the loaded models in GB; the least recently used model is unloaded
            first; unlimited if unset.
        prefix_cache: Maximum size in MB of the keys and values that each language model keeps of
            the beginnings of prompts, which later prompts with the same beginning reuse; 0 keeps
            none.
        queue: Maximum number of waiting texts; further requests are answered with status 429.
        deadline: Time limit of a request in seconds.
        batch_tokens: Size of a batch in tokens: texts x longest text x beam, padding included.
        requests_per_minute: Maximum number of requests per client and minute; a client is a key or,
            without --keys, an address; unlimited if unset.
        characters_per_minute: Maximum number of characters per client and minute; unlimited if
            unset.
        max_texts: Maximum number of texts in a request.
        max_characters: Maximum number of characters in a request.
        max_body: Maximum size of a request in MB.
        max_file: Maximum size of a request with a document in MB.
        jobs: Folder for documents that are translated as jobs, so that jobs continue after a
            restart; if unset, jobs end with the server.
    """

    workers: int = 1
    memory: float | None = None
    prefix_cache: float = 256.0
    queue: int = 1000
    deadline: float = 60.0
    batch_tokens: int = 2048
    requests_per_minute: int | None = None
    characters_per_minute: int | None = None
    max_texts: int = 1000
    max_characters: int = 100_000
    max_body: float = 2.0
    max_file: float = 20.0
    jobs: Path | None = None

    def check(self) -> None:
        """Refuse limits that are not positive; make the folder of jobs.

        Raises:
            ConfigError: naming the flag.
        """
        try:
            if self.jobs is not None:
                self.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The folder of jobs cannot be made: {error.strerror}", where=f"--jobs {self.jobs}"
            ) from None
        for name, value in dataclasses.asdict(self).items():
            parts = ("memory", "prefix_cache", "max_body", "max_file", "deadline")
            least = 0 if name in parts else 1
            is_off = name == "prefix_cache" and value == 0
            if isinstance(value, int | float) and not is_off and (value < least or value == 0):
                flag = name.replace("_", "-")
                raise ConfigError(f"It must be positive: {value}", where=f"--{flag}")


@flag_group("Terms", 46)
class ServedTerms:
    """Flags of the glossaries of the served models.

    Args:
        glossary: Glossary file as for `heedful translate`, or NAME=FILE for one of several models;
            may be repeated.
        glossary_mode: Method for glossary terms: hard constrains the search; soft is for models
            trained with --soft-terms.
    """

    glossary: tuple[str, ...] = ()
    glossary_mode: Literal["hard", "soft"] = "hard"

    def arguments(self, models: ServedModels) -> dict[str, Any]:
        """Return the settings of glossaries; each file is read once to find mistakes early.

        Raises:
            ConfigError: when a file belongs to no model, or its model is unclear.
            DataError: for a line that is no term.
        """
        from heedful.pipelines.glossary import Glossary

        files: dict[str, Path] = {}
        for word in self.glossary:
            name, separator, file = word.partition("=")
            if not separator or Path(word).exists():
                name, file = next(iter(models.by_name)), word
                if len(models.by_name) > 1:
                    raise ConfigError(
                        "A glossary belongs to one model, and there are several",
                        where=f"--glossary {word}",
                        remedy=f"Name the model: {name}={word}",
                    )
            model = models.find(name)
            if name in files:
                raise ConfigError(
                    f"The model {name} has a glossary already",
                    where=f"--glossary {word}",
                    remedy="Put all terms into one file",
                )
            Glossary.read(file, languages=model.languages)
            files[name] = Path(file)
        return {"glossaries": files, "soft_terms": self.glossary_mode == "soft"}


def serve(
    *models: str,
    access: Access = Access(),
    load: Load = Load(),
    device: DeviceFlag = "auto",
    precision: PrecisionFlag = "auto",
    split: SplitFlag = None,
    search: SearchFlags | None = None,
    consistency: ConsistencyFlags = ConsistencyFlags(),
    terms: ServedTerms = ServedTerms(),
    output: Output = Output(),
) -> None:
    """Serve translators and language models over HTTP.

    Clients of LibreTranslate and of OpenAI work unchanged; /v1/translate also returns scores,
    alignments and checks, and /spec describes the interface. Sentences of many requests are
    translated in common batches. Without a file of keys, the server listens on this machine only.

    SIGHUP reloads the models; SIGTERM and Ctrl-C stop the server. Neither loses a request.

    For example:

        heedful serve en-de
        heedful serve en-de=run de-fr=other-run --precision int8 --port 8000
        heedful serve --new-key alice --keys keys.txt
        heedful serve en-de --host 0.0.0.0 --keys keys.txt --workers 2

    Args:
        models: Models to serve: directories, names of models that come with Heedful, or OWNER/NAME
            of the Hugging Face hub; LANGUAGES=MODEL, such as en-de=run or pt-BR:en=run, names the
            languages.
    """
    if access.new_key is not None:
        _make_key(access.new_key, access.keys)
        return
    from heedful.apps.sockets import check_packages

    check_packages(_NEEDED, "The server", "serve")
    settings = search_settings(search)
    flags = {"models": models, "device": device, "precision": precision, "split": split}
    groups = (access, load, settings.plain(), consistency, terms)
    report = Report("serve", output, flags, *groups)
    from heedful.apps.serve.served_models import ServedModels, parse_model, pinned_model
    from heedful.apps.serve.server import serve as run
    from heedful.apps.serve.server_settings import Allowance, ServerSettings
    from heedful.apps.sockets import address_of, is_loopback, listen, outside_address

    load.check()
    if not models:
        raise ConfigError("No model given", remedy="Name one, such as: heedful serve en-de")
    models = tuple(map(pinned_model, models))
    # Mistakes are reported before workers start.
    glossaries = terms.arguments(ServedModels(map(parse_model, models)).checked())
    access.check()
    listening = listen(access.host, access.port)
    address = address_of(listening)

    def ready() -> None:
        if output.json:
            print_json({"address": address, "models": list(models)})
        say(f"Serving at {address} (Ctrl-C stops it)")
        if is_loopback(access.host):
            say("Only this machine can reach it")
        elif (outside := outside_address()) is not None:
            say(f"From other machines: {address_of(listening, outside)}")

    run(
        ServerSettings(
            models=models,
            device=device,
            precision=precision,
            search=settings,
            consistency=dataclasses.asdict(consistency),
            split=split,
            **glossaries,
            limits=_limits(load, settings),
            gate=_gate(access, load),
            most_bytes=None if load.memory is None else int(load.memory * 1e9),
            prefix_bytes=int(load.prefix_cache * 1e6),
            most_waiting=load.queue,
            positions=load.batch_tokens,
            workers=load.workers,
            jobs=load.jobs,
            suggestions=access.suggestions,
            keys=access.keys,
            allowance=Allowance(load.requests_per_minute, load.characters_per_minute),
            access_log=None if access.access_log == "none" else access.access_log,
        ),
        listening,
        ready,
    )
    report.finish({"address": address}, summary=False)


def _limits(load: Load, settings: SearchSettings) -> Limits:
    from heedful.apps.serve.server_settings import Limits

    # The limits allow at least the beam and lengths that the server's own flags set.
    beam = max(Limits().beam, settings.width)
    tokens = max(Limits().tokens, settings.min_length, settings.max_length or 0)
    return Limits(load.max_texts, load.max_characters, load.deadline, beam, tokens)


def _gate(access: Access, load: Load) -> GateSettings:
    from heedful.apps.serve.server_settings import GateSettings

    sizes = int(load.max_body * 1e6), int(load.max_file * 1e6)
    return GateSettings(access.host, *sizes, origins=access.cors, proxies=access.forwarded_from)


def _make_key(name: str, file: Path | None) -> None:
    """Add a key to the file of keys, and print it."""
    from heedful.apps.serve.keys import add_key

    if file is None:
        raise ConfigError(
            "The file of keys is missing", where="--new-key", remedy="Name it: --keys FILE"
        )
    key = secrets.token_urlsafe(32)
    add_key(file, name, key)
    print(key)
    say(f"The key of {name}. It is not stored: {file} has only its hash")
