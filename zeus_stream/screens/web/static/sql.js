// The SQL box: Ctrl+Enter runs the query.
const query = document.getElementById("query");
query.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    query.form.requestSubmit();
  }
});
