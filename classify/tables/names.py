"""Usual names of text, label and split columns in many languages, in lower case."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

TEXT_NAMES = (
    "text", "sentence", "message", "review", "content", "body", "comment", "tweet", "question", "utterance",
    "query", "document", "description", "post", "title", "sms", "comment_text", "review_text", "texts", "email",
    "feedback",
    "texte", "commentaire", "avis", "phrase", "nachricht", "kommentar", "bewertung", "satz",
    "texto", "comentario", "comentário", "mensaje", "mensagem", "opinión", "reseña", "testo", "commento",
    "recensione",
    "tekst", "текст", "отзыв", "сообщение", "комментарий", "metin", "yorum", "نص", "النص",
    "文本", "内容", "评论", "评价", "句子", "文字", "標題", "評論", "內容", "テキスト", "文", "本文", "レビュー",
    "텍스트", "내용", "리뷰",
)  # fmt: skip
LABEL_NAMES = (
    "label", "labels", "class", "category", "target", "intent", "sentiment", "topic", "tag", "emotion", "y",
    "label_name", "label_text", "classification", "airline_sentiment", "polarity",
    "étiquette", "classe", "catégorie", "klasse", "kategorie", "etiqueta", "clase", "categoría", "categoria",
    "etichetta",
    "метка", "класс", "категория", "тональность", "etiket", "kategori", "sınıf", "تصنيف", "فئة",
    "标签", "类别", "分类", "情感", "標籤", "類別", "ラベル", "カテゴリ", "분류", "라벨", "레이블",
)  # fmt: skip
# Label names that may also name metadata, such as the kind of a product. Beside such a column, one of ratings or
# decisions is as likely the label.
CATEGORY_NAMES = (
    "class", "category", "target", "topic", "tag", "y", "classe", "catégorie", "klasse", "kategorie", "clase",
    "categoría", "categoria", "класс", "категория", "kategori", "sınıf", "فئة", "类别", "分类", "類別",
    "カテゴリ", "분류",
)  # fmt: skip
RATING_NAMES = (
    "stars", "star", "star_rating", "rating", "ratings", "score", "overall", "recommended", "recommend", "spam",
    "is_spam", "toxic", "is_toxic", "stance", "resolution", "outcome", "verdict", "bewertung", "sterne", "étoiles",
    "puntuación", "estrellas", "评分", "星级", "評分", "評価", "평점",
)  # fmt: skip
# Words in column names that mark metadata.
METADATA_NAMES = frozenset((
    "annotator", "rater", "coder", "worker", "judge", "user", "username", "sender", "speaker", "customer", "lang",
    "locale", "country", "date", "year", "month", "version", "source",
))  # fmt: skip
# Names of columns that may hold labels, where no column has one of LABEL_NAMES.
GROUP_NAMES = (
    "queue", "team", "department", "dept", "group", "issue_type", "ticket_type", "request_type", "reason", "theme",
    "subject_area", "abteilung", "thema", "warteschlange", "rubrik", "équipe", "département", "thème", "equipo",
    "departamento", "tema", "reparto", "afdeling", "отдел", "тема", "部门", "主题", "部門", "부서",
)  # fmt: skip
# Names of the columns of text pairs: of GLUE's files, usual ones, and those of transformers' pipelines.
TEXT_PAIR_NAMES = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence"), ("premise", "hypothesis"),
    ("#1_string", "#2_string"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text", "text_pair"),
)  # fmt: skip
# Names of text and label columns in known data sets: a spreadsheet that was read in R.
PAIRED_NAMES = (("v2", "v1"),)
# Names that show that a row is a header.
USUAL_NAMES = frozenset((*TEXT_NAMES, *LABEL_NAMES, *itertools.chain(*PAIRED_NAMES)))
# The splits of a table, the words for each, and the names of columns that hold them.
SPLITS = ("train", "eval", "test")
SPLIT_WORDS = (
    ("train", "training", "trn", "entrenamiento", "treino", "entraînement", "apprentissage", "训练", "训练集", "訓練"),
    (
        "validation", "valid", "val", "dev", "devel", "development", "eval", "evaluation", "tuning",
        "validación", "validação", "validierung", "验证", "验证集", "検証",
    ),
    ("test", "testing", "tst", "holdout", "heldout", "prueba", "teste", "测试", "测试集", "テスト"),
)  # fmt: skip
# Names a test, unless another word does, as in valid_unseen.
UNSEEN = "unseen"
ALL_SPLIT_WORDS = frozenset((*itertools.chain(*SPLIT_WORDS), UNSEEN))
SPLIT_NAMES = ("split", "partition", "subset", "part", "set", "usage")


def is_usual(name: str, related: Collection[str] = ()) -> bool:
    """Return whether a header may have this name: a usual one, or a column of a `related` table."""
    return name in related or name.strip().lower() in USUAL_NAMES


def parse_split_name(name: str) -> int | None:
    """Return the split that a name such as train, dev or oos_test means, as an index into `SPLITS`.

    None where it means none, or several, as `dev-test` does: validation in one data set, the test in another.
    """
    words = re.findall(r"[a-z]+|[^\W\d_]+", re.sub(r"h[oe]ld[ _-]out", "holdout", name.lower()))
    splits = {split for split, names in enumerate(SPLIT_WORDS) if any(word in names for word in words)}
    if not splits and UNSEEN in words:
        return SPLITS.index("test")
    return splits.pop() if len(splits) == 1 else None
