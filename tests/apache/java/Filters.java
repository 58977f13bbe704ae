package downrange.driver;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** Operations that run the broker's own SQL92 filter. */
final class Filters {
    private Filters() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("sql.evaluate", Filters::evaluate);
    }

    /** For each expression: "refused", or its result for each set of properties. */
    private static Object evaluate(Args args) {
        List<EvaluationContext> messages = new ArrayList<>();
        for (Object properties : args.list("properties")) {
            messages.add(context((Map<?, ?>) properties));
        }
        List<Object> verdicts = new ArrayList<>();
        for (Object text : args.list("expressions")) {
            Expression expression;
            try {
                expression = FilterFactory.INSTANCE.get("SQL92").compile(text.toString());
            } catch (Throwable refused) {
                verdicts.add("refused");
                continue;
            }
            List<Object> results = new ArrayList<>();
            for (EvaluationContext message : messages) {
                results.add(result(expression, message));
            }
            verdicts.add(results);
        }
        return verdicts;
    }

    private static String result(Expression expression, EvaluationContext message) {
        try {
            return String.valueOf(expression.evaluate(message));
        } catch (Throwable failed) {
            return "error";
        }
    }

    private static EvaluationContext context(Map<?, ?> properties) {
        Map<String, Object> values = new LinkedHashMap<>();
        properties.forEach((name, value) -> values.put(name.toString(), value.toString()));
        return new EvaluationContext() {
            @Override
            public Object get(String name) {
                return values.get(name);
            }

            @Override
            public Map<String, Object> keyValues() {
                return values;
            }
        };
    }
}
