"""Patterns of the words and formulas that name quantities, in English and in Chinese."""

import re

ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
    "eighth": 8,
    "一": 1, "二": 2, "两": 2, "兩": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8,
    "erste": 1, "zweite": 2, "dritte": 3, "vierte": 4,
    "primer": 1, "primera": 1, "segundo": 2, "segunda": 2, "tercer": 3, "tercera": 3, "cuarta": 4,
    "pierwsz": 1, "drug": 2, "trzeci": 3, "czwart": 4,
}  # fmt: skip

_NTH = "first|second|third|fourth|fifth|sixth|seventh|eighth"
_NTH_ELSEWHERE = (
    "(?:(erste|zweite|dritte|vierte)[nrsm]?|(primera?|segund[oa]|tercera?|cuarta)|"
    "(pierwsz|drug|trzeci|czwart)[aąeiy]\\w{0,3})"
)
_COUNT = "[0-9]{1,3}|[一二两兩三四五六七八]"
_GAP = r"[\s_#:=]{0,3}"
_HEADS = "head|kopf|cabeza|głow[aąęy]|ヘッド"
_ROWS = (
    "row|token|word|position|query|pos|input|output|zeile|wort|anfrage|fila|palabra|posición|"
    "consulta|wiersz|słowo|pozycja|zapytanie|単語|トークン|クエリ"
)
_COLUMNS = "column|key|col|spalte|schlüssel|columna|clave|kolumna|klucz"


def _patterns(*sources: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(source, re.IGNORECASE) for source in sources)


HEAD = _patterns(
    rf"第\s?({_COUNT})\s?[个個]?\s?(?:注意力)?[头頭]",
    rf"[头頭]{_GAP}([0-9]{{1,3}}|[一二三四五六七八])(?![0-9.]|[个個])",
    rf"\b({_NTH})\s+(?:attention\s+)?head\b",
    rf"{_NTH_ELSEWHERE}\s+(?:{_HEADS})",
    rf"(?:\b|(?<=[_\W]))(?:{_HEADS}){_GAP}(?:[hi]\s?=\s?|no\.?\s?|number\s|nr\s)?([0-9]{{1,3}})(?![0-9.])",
)
ROW = _patterns(
    rf"第\s?({_COUNT})\s?[个個]?\s?(?:行|列(?=[的做])|词|詞|token|位置|字|单词|單詞|查询|查詢|句)",
    rf"(?:行|位置|词|詞){_GAP}([0-9]{{1,3}})(?![0-9.])",
    r"([0-9]{1,2})\s?番目",
    rf"\b({_NTH})\s+(?:row|token|word|position|query|input)\b",
    rf"{_NTH_ELSEWHERE}\s+(?:{_ROWS})",
    rf"\b(?:{_ROWS}){_GAP}([0-9]{{1,3}})(?![0-9.])",
)
COLUMN = _patterns(
    rf"第\s?({_COUNT})\s?(?:列|[个個]\s?[键鍵])",
    rf"(?:列|键|鍵){_GAP}([0-9]{{1,3}})(?![0-9.])",
    rf"\b({_NTH})\s+(?:column|key)\b",
    rf"\b(?:{_COLUMNS}){_GAP}([0-9]{{1,3}})(?![0-9.])",
)

_SCORE = ("score", "scaled", "masked")
WORDS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(source, re.IGNORECASE), keys)
    for source, keys in (
        (
            r"concat|\bcat\(|拼接|串联|串聯|合并|合併|merged?\b|verkett|zusammengef|sklej|połącz|結合|連結",
            ("concat", "output"),
        ),
        (
            (
                r"weighted (?:sum|average)|加权|加權|context vectors?|上下文向量|gewichtete summe|"
                r"suma ponderada|suma ważona|średni\w ważon|重み付き(?:和|平均)|加重(?:和|平均)"
            ),
            ("head", "output"),
        ),
        (
            (
                r"soft-?max|attention[ _](?:weights?|matrix|pattern|distribution|prob\w*|map)|"
                r"\battn(?:_w\w*)?\b|\bweights?\b|probabilit|权重|權重|概率|機率|归一化|正規化|"
                r"注意力(?:矩阵|矩陣|分布)|gewichte?\b|wahrscheinlich|\bpesos?\b|probabilidad|"
                r"\bwagi\b|prawdopodob|重み|ソフトマックス|注意の重み"
            ),
            ("softmax",),
        ),
        (
            (
                r"(?:before|prior to|without)\s(?:the\s)?scal|\bunscaled\b|\braw\b|"
                r"(?:缩放|縮放)(?:之)?前|"
                r"vor der skalierung|antes de escalar|przed skalowan|スケール前"
            ),
            ("score",),
        ),
        (
            r"masked|\bmasking|掩码后|掩碼後|掩盖|遮(?:挡|住|蔽|罩)后?|maskiert|enmascarad|zamaskowan|マスク後",
            ("masked", "scaled"),
        ),
        (
            (
                r"\bscal(?:ed|ing)|缩放|縮放|skaliert|escalad|skalowan|スケール|"
                r"\bdivi(?:de|ded|ding|didos?|didas?|sión)\b|geteilt|除以|podziel|dziel|で割|割る"
            ),
            ("scaled", "masked"),
        ),
        (
            (
                r"\bscores?|logits?|dot[ -]products?|得分|分数|分數|打分|点积|點積|内积|內積|"
                r"punktproduk|skalarproduk|bewertung|puntuaci|productos? (?:escalar|punto)|"
                r"iloczyn|スコア|ドット積"
            ),
            (*_SCORE, "softmax"),
        ),
        (
            (
                r"head[ _]?(?:[0-9]{1,2}[ _]?)?(?:outputs?|gives)|"
                r"[头頭].{0,4}(?:的?[输輸]出|结果|結果)|"
                r"ausgabe des kopf|salida de la cabeza|wynik głowy|ヘッドの出力"
            ),
            ("head", "output"),
        ),
        (
            r"\boutputs?\b|^\W*outs?\W*$|输出|輸出|最终结果|最終結果|ausgabe|\bsalidas?\b|wyjści|\bwynik\b|出力",
            ("output", "head", "concat"),
        ),
        (
            (
                r"\bquer(?:y|ies)(?![ _]*[0-9])|(?:查询|查詢)(?!\s*[0-9])|\banfragen?\b(?! [0-9])|"
                r"\bconsultas?\b(?! [0-9])|zapytani|クエリ(?!\s*[0-9])"
            ),
            ("q", "Q"),
        ),
        (
            (
                r"\bkeys?(?![ _]*[0-9])\b|[键鍵](?!\s*[0-9])|schlüssel(?! [0-9])|"
                r"\bclaves?\b(?! [0-9])|"
                r"klucz(?!\w* [0-9])|キー"
            ),
            ("k", "K"),
        ),
        (
            (
                r"\bvalue (?:matrix|vectors?)|^\W*values?\W*$|值(?:矩阵|向量|矩陣)|"
                r"^\W*(?:werte|valores|wartości|バリュー|值)\W*$"
            ),
            ("v", "V"),
        ),
        (
            r"\binputs?\b|embeddings?|输入|輸入|嵌入|词向量|詞向量|eingabe|\bentradas?\b|wejści|入力|埋め込み",
            ("x",),
        ),
    )
)
"""A pattern and the quantities it may mean, the likeliest first; the first match decides."""

_OF = "quer(?:y|ies)|keys?|values?|outputs?"
_NAMED = (
    re.compile(rf"weights?\s(?:matrix\s)?for\s(?:the\s)?({_OF})", re.IGNORECASE),
    re.compile(rf"\b({_OF})\s(?:projection|weights?)\b(?!\sof)", re.IGNORECASE),
    re.compile(r"(查询|键|值|输出)的?(?:权重|投影)"),
)
_WHICH = {"q": "q", "k": "k", "v": "v", "o": "out", "查": "q", "键": "k", "值": "v", "输": "out"}


def weight_named(flat: str) -> str:
    """Which projection words name, as in "weights for the key"; "" for none."""
    for pattern in _NAMED:
        match = pattern.search(flat)
        if match:
            return _WHICH[match[1][0].lower()]
    return ""


_CALL = re.compile(
    r"(?<![A-Za-z\u3400-\u9fff])(?!(?:print|array|tensor|matrix|input|embed\w*)\()"
    r"(?P<name>[A-Za-z][A-Za-z_]{1,30}|[\u3400-\u9fff]{1,8}) ?"
    r"\((?P<given>[A-Za-z][A-Za-z0-9_^<>]{0,12}(?:, ?[A-Za-z][A-Za-z0-9_^<>]{0,12}){0,5})\)",
    re.IGNORECASE,
)
_CHINESE = (
    (re.compile(r"多头|自注意力|注意力层"), ("output", "concat")),
    (re.compile(r"注意力"), ("head", "output", "concat")),
)


def called(flat: str) -> tuple[tuple[str, ...], str]:
    """What a call such as ``多头(X)`` gives, and the label without what calls are given.

    Example:
        >>> called("多头(X)"), called("f(X)"), called("LayerNorm(X)")
        ((('output', 'concat'), '多头'), ((), 'f(X)'), ((), 'LayerNorm'))
    """
    match = _CALL.search(flat)
    if match is None:
        return (), flat
    known = (keys for pattern, keys in _CHINESE if pattern.search(match["name"]))
    spaced = flat[match.end("name")] == " "
    if spaced and not composite(match.group()):
        return (), flat
    return next(known, ()), _CALL.sub(lambda m: m["name"], flat)


_FORMULAS = tuple(
    (re.compile(source), keys)
    for source, keys in (
        (r"(?i:concat|\bcat)\W?\(.{0,120}\).{0,4}W", ("output",)),
        (r"(?i:concat|\bcat)\W?\(", ("concat",)),
        (r"(?i:softmax)(?:_<?\w{1,6}>?)?[(\[].{0,120}[)\]].{0,3}[Vv](?![a-z])", ("head",)),
        (r"(?i:softmax)", ("softmax",)),
        (r"(?i:multi-?_?heads?(?:_?self)?(?:_?att(?:entio)?n)?|mh_?s?a)\(", ("output", "concat")),
        (r"(?i:self-?_?att(?:entio)?n|attn|atten)\(", ("output", "head", "concat")),
        (r"(?i:attention)\([^(),]{1,40}\)", ("head", "output", "concat")),
        (r"Attention\(", ("head",)),
        (
            r"[Qq][^A-Za-z·]{0,16}·?[Kk][^A-Za-z]{0,16}(?:\^<?T>?|\.T|ᵀ)?[^A-Za-z]{0,8}[/√]",
            ("scaled", "masked"),
        ),
        (
            r"(?<![A-Za-z])(?:S|E|s|scores)[^A-Za-z·;]{0,10}(?:/|\\/)[^A-Za-z]{0,6}√",
            ("scaled", "masked"),
        ),
        (r"\+M(?![a-z])", ("masked",)),
        (r"(?<![a-z])[Qq](?![a-z])[^A-Za-z·]{0,16}[·@]?(?<![a-z])[Kk](?![a-z])", _SCORE),
        (
            (
                r"(?<![A-Za-z])(?:[AP]|α|attn\w{0,8}|(?:attention_?)?weights|probs?|w)[^A-Za-z·@;]{0,12}"
                r"[·@;]?[VXE](?![a-z])"
            ),
            ("head",),
        ),
        (r"(?<![A-Za-z])V[·@;]?A(?![A-Za-z])", ("head",)),
        (r"(?<![a-z])K(?:\^<?T>?|ᵀ|⊤)[·@]?Q(?![a-z])[^A-Za-z]{0,8}[/√]", ("scaled", "masked")),
        (r"(?<![a-z])K(?:\^<?T>?|ᵀ|⊤)[·@]?Q(?![a-z])", _SCORE),
        (r"(?<![A-Za-z])[Xx][^A-Za-z·@]{0,12}[·@]?W[_^]?<?[0-9,]*[_^<]*[Qq]", ("q", "Q")),
        (r"(?<![A-Za-z])[Xx][^A-Za-z·@]{0,12}[·@]?W[_^]?<?[0-9,]*[_^<]*[Kk]", ("k", "K")),
        (r"(?<![A-Za-z])[Xx][^A-Za-z·@]{0,12}[·@]?W[_^]?<?[0-9,]*[_^<]*[Vv]", ("v", "V")),
        (r"[·@)>A-Za-z0-9]W[_^]?<?[Oo]", ("output",)),
    )
)


_ORDINARY = re.compile(
    r"(?<![A-Za-z_^<.])(?!(?:soft|concat|cat|att|self|multi|mh|head|sqrt|np|torch|math|weights)\b|"
    r"softmax|concat|attn|attention|multihead)[A-Za-z]{2,}(?![A-Za-z_(<^.])(?=[\s:,]|$)",
    re.IGNORECASE,
)
"""A word of running text, which parts what stands on its two sides."""


def composite(flat: str) -> tuple[str, ...]:
    r"""The quantity a formula such as QK^T/√d_k gives; () where the label is no formula.

    Example:
        >>> composite(plain(r"\\frac{Q_1 K_1^T}{\\sqrt{d_k}}"))
        ('scaled', 'masked')
    """
    tight = _ORDINARY.sub(";", flat).replace(" ", "")
    if not tight.isascii() or len(re.findall(r"[A-Za-z]{4,}", tight)) > 3:
        tight = "".join(mark if mark.isascii() or mark in "√α·ᵀ" else " " for mark in tight)
    return next((keys for pattern, keys in _FORMULAS if pattern.search(tight)), ())


_CLEAN = tuple(
    (re.compile(source), into)
    for source, into in (
        (r"<sub>([^<>]{0,20})</sub>", r"_{\1}"),
        (r"<sup>([^<>]{0,20})</sup>", r"^{\1}"),
        (r"</?[A-Za-z][^<>]{0,100}>", ""),
        (r"\\(?:left|right|displaystyle|,|;|!|quad)(?![A-Za-z])", " "),
        ((r"\\(?:text|mathrm|mathbf|mathit|operatorname|bm|boldsymbol|textbf|vec|mathcal|rm)\*?"
         r"\s?\{([^{}]{0,60})\}"), r"\1"),
        ((r"\\(?:text|mathrm|mathbf|mathit|operatorname|bm|boldsymbol|textbf|vec|mathcal|rm)\*?"
         r"\s?\{([^{}]{0,60})\}"), r"\1"),
        (r"\\(?:wide)?(?:tilde|hat)\s?\{?([A-Za-z])\}?", r"\1~"),
        (r"\\alpha(?![A-Za-z])", "α"),
        (r"\\(?:top|intercal)(?![A-Za-z])", "T"),
        (r"\\(?:times|cdot)(?![A-Za-z])|[×⋅∙*]", "·"),
        (r"\s?([_^])\s?\{([^{}]{0,40})\}", r"\1<\2>"),
        (r"\\sqrt\s?\{([^{}]{0,40})\}", r"√\1"),
        (r"\\sqrt|(?:np\.|math\.)?sqrt", "√"),
        (r"\\[dt]?frac\s?\{([^{}]{0,80})\}\s?\{([^{}]{0,80})\}", r"\1/\2"),
        (r"\\operatorname|[$`\\{}]", ""),
        (r"(?<![A-Za-z])([QKVXASP])(?=[QKVWX](?![a-z]))", r"\1 "),
    )
)  # fmt: skip


def plain(text: str) -> str:
    r"""A label without LaTeX, HTML or Markdown around it; indices stay in ``_<..>`` and ``^<..>``.

    Example:
        >>> plain(r"$\tilde{s}_{0}$"), plain("<b>head</b><sub>1</sub>")
        ('s~_<0>', 'head_<1>')
    """
    for pattern, into in _CLEAN:
        text = pattern.sub(into, text)
    return text
